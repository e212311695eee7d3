package csuite

import (
	"os"
	"testing"

	"github.com/enginetest/enginetest/forkproc"
)

func TestExit(t *testing.T)    { forkproc.Run(t, func(*testing.T) { exit0() }) }
func TestExitNow(t *testing.T) { forkproc.Run(t, func(*testing.T) { exitNow() }) }
func TestAbort(t *testing.T)   { forkproc.Run(t, func(*testing.T) { abort() }) }
func TestSegv(t *testing.T)    { forkproc.Run(t, func(*testing.T) { segv() }) }
func TestMissing(t *testing.T) { forkproc.Run(t, func(*testing.T) { missing() }) }

func TestCrash(t *testing.T) {
	forkproc.Run(t, func(*testing.T) { segv() }, forkproc.Env("GOTRACEBACK=crash"))
}

func TestMain(m *testing.M) {
	if os.Getenv("CSUITE_EXIT") != "" && forkproc.InChild() {
		exit0()
	}
	forkproc.Main(m)
}
