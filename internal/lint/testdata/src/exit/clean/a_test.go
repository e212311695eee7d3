package clean

import (
	"os"
	"testing"
)

// A program that starts itself again ends before the tests, and a checked result may end with 0.
func TestMain(m *testing.M) {
	if os.Getenv("CHILD") != "" {
		child()
		os.Exit(0)
	}
	switch code := m.Run(); code {
	case 0:
		os.Exit(0)
	default:
		os.Exit(code)
	}
}

func child() {}
