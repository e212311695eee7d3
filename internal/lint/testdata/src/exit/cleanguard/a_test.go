package cleanguard

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if code := m.Run(); code != 0 {
		os.Exit(code)
	}
	os.Exit(0)
}
