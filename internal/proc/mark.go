package proc

import (
	"syscall"

	"github.com/enginetest/enginetest/internal/procfs"
)

// MarkOf returns the identity of the family that a process was started in, and "" when it is in
// none, or in one that this process is in too.
func MarkOf(pid int) string {
	mark, _ := procfs.Variable(pid, envID)
	if own, _ := syscall.Getenv(envID); mark == own {
		return ""
	}
	return mark
}
