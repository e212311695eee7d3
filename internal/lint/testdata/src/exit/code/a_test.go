package code

import (
	"fmt"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if code != 0 {
		fmt.Println("failed")
	}
	os.Exit(0) // want `os.Exit\(0\) hides every failure`
}
