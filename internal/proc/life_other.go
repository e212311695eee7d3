//go:build !linux

package proc

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// Missing says what this system lacks.
func Missing() string {
	return runtime.GOOS + " has no death signal: a child outlives a parent that is killed, and processes that left its group are not found"
}

type lifeline struct{}

func newLifeline() (*lifeline, error) { return &lifeline{}, nil }

func (*lifeline) attach(cmd *exec.Cmd) {
	cmd.Env = append(cmd.Env, envLifeline+"="+strconv.Itoa(os.Getpid()))
}
func (*lifeline) arm(int) {}
func (*lifeline) close()  {}

var adopted bool

// IsChild reports whether the parent of this process started it with Start.
func IsChild() bool { return adopted }

func init() {
	if env, ok := syscall.Getenv(envLifeline); ok {
		_ = os.Unsetenv(envLifeline)
		adopted = env == strconv.Itoa(os.Getppid())
	}
}

func waitable(int) bool { return false }

func beReaper() func() { return func() {} }

// Sweep kills what is left of the child's process group. It cannot name it.
func (c *Child) Sweep(time.Duration) []Process {
	defer c.end()
	killGroup(c.PID())
	return nil
}

// SweepHolders finds nothing on this system.
func SweepHolders(*os.File) []Process { return nil }

// Inode is not known on this system.
func Inode(int) uint64 { return 0 }
