//go:build unix && !linux

package proc

import (
	"os/exec"
	"syscall"
)

func ownGroup(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
}

func killGroup(pgid int) { _ = syscall.Kill(-pgid, syscall.SIGKILL) }

func groupAlive(pgid int) bool { return syscall.Kill(-pgid, 0) == nil }

func signalGroup(pgid int, sig syscall.Signal) error { return syscall.Kill(-pgid, sig) }

func setsid(a *syscall.SysProcAttr) bool { return a.Setsid }

func clearSupported(a *syscall.SysProcAttr) { a.Setsid, a.Setpgid = false, false }
