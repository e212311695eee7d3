package symbols

import (
	"os/exec"
	"syscall"
)

// killGroup makes the end of cmd's context end what cmd has started, too: the compiler and the
// linker.
func killGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
