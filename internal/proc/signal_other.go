//go:build !unix

package proc

import "syscall"

// SignalName returns the name that the system has for a signal.
func SignalName(sig syscall.Signal) string { return sig.String() }
