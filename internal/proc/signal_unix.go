//go:build unix

package proc

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// SignalName returns "SIGTERM" for syscall.SIGTERM.
func SignalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return sig.String()
}
