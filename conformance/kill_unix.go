//go:build unix

package conformance

import "syscall"

func killProcess(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) }
