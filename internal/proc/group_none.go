//go:build !unix

package proc

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

func ownGroup(*exec.Cmd) {}

func killGroup(pid int) {
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Kill()
	}
}

func groupAlive(int) bool { return false }

func signalGroup(pid int, sig syscall.Signal) error {
	if sig != syscall.SIGKILL {
		return errors.ErrUnsupported
	}
	killGroup(pid)
	return nil
}

func setsid(*syscall.SysProcAttr) bool { return false }

func clearSupported(*syscall.SysProcAttr) {}
