package zero

import (
	"os"
	"testing"
)

const fine = 0

func TestMain(m *testing.M) {
	m.Run()
	os.Exit(fine) // want `os.Exit\(0\) hides every failure`
}

func init() {
	if len(os.Args) == 0 {
		os.Exit(0) // not in TestMain
	}
}
