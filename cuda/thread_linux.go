//go:build linux && (amd64 || arm64)

package cuda

import "syscall"

// threadID is the calling OS thread. RawSyscall: the call cannot block, so the scheduler need not
// know.
func threadID() uintptr {
	id, _, _ := syscall.RawSyscall(syscall.SYS_GETTID, 0, 0, 0)
	return id
}
