//go:build unix

package gotest

import (
	"os/exec"
	"syscall"
)

// ownGroup runs the command in a process group of its own, so that what it started ends with it.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
}
