// Package proc starts child processes that cannot outlive this one.
//
// A child started here is in its own process group and is tied to its parent before its first instruction runs:
//
//   - Pdeathsig kills it when the thread that forked it ends. Start and the wait therefore share one goroutine that holds its
//     thread; Go's fork code closes the race of a parent that dies before the signal is armed.
//   - A lifeline: the read end of a pipe whose only write end is in the parent. The kernel itself sends SIGKILL to the whole
//     process group when the last writer is gone (F_SETSIG on the pipe). No goroutine watches, so it works while the child is
//     stuck in C, stopped, or has only just been forked, and no leak detector sees it. What the child starts inherits it.
//   - The parent becomes a subreaper while children live, so a grandchild that left the group is found, named and killed.
//
// On other systems a child gets its own process group and is killed by Kill and Sweep; nothing protects it from a parent that
// is itself killed. Missing says so.
package proc

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

const (
	// envID holds the identities of the child and of the children it is inside of, outermost first, joined by "/".
	envID = "ENGINETEST_FAMILY"
	// envLifeline holds "fd:inode" of the lifeline.
	envLifeline = "ENGINETEST_LIFELINE"
)

// A Child is a started process.
type Child struct {
	cmd     *exec.Cmd
	id      string // see envID
	life    *lifeline
	release func() // gives up being a reaper
	done    chan struct{}
	state   *os.ProcessState

	mu     sync.Mutex
	reaped bool
}

// StartChild starts cmd. It appends one file to cmd.ExtraFiles, adds to cmd.Env (which it fills from the environment when nil) and
// sets cmd.SysProcAttr's process group and death signal. Do not call cmd.Wait: Start waits itself, and Done tells. Call Sweep
// then, always.
//
// Give cmd files, not other readers and writers, as Stdin, Stdout and Stderr: a copying goroutine would make the end of the
// process wait for whoever still holds the pipe.
func StartChild(cmd *exec.Cmd) (*Child, error) {
	c := &Child{cmd: cmd, id: newID(), done: make(chan struct{})}
	var err error
	if c.life, err = newLifeline(); err != nil {
		return nil, fmt.Errorf("lifeline: %w", err)
	}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, envID+"="+c.id)
	c.life.attach(cmd)
	c.release = beReaper()
	started := make(chan error, 1)
	go func() {
		defer close(c.done)
		runtime.LockOSThread() // Pdeathsig follows the thread
		defer runtime.UnlockOSThread()
		ownGroup(cmd)
		err := cmd.Start()
		if err == nil {
			c.life.arm(cmd.Process.Pid)
		}
		started <- err
		if err == nil {
			c.wait()
		}
	}()
	if err := <-started; err != nil {
		<-c.done
		c.end()
		return nil, err
	}
	return c, nil
}

func (c *Child) wait() {
	// Dead but not reaped, its number is still its own: whoever signals it now hits nobody else.
	held := waitable(c.cmd.Process.Pid)
	if held {
		c.mu.Lock()
	}
	_ = c.cmd.Wait() // its error says what State says
	if !held {
		c.mu.Lock()
	}
	defer c.mu.Unlock()
	c.reaped = true
	c.state = c.cmd.ProcessState
}

// PID is the process id of the started command.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// end lets go of what Start took. Closing the lifeline kills what is left of the group.
func (c *Child) end() {
	c.life.close()
	c.release()
}

// Done is closed when the process is dead and reaped.
func (c *Child) Done() <-chan struct{} { return c.done }

// State is how the process ended; nil before Done.
func (c *Child) State() *os.ProcessState {
	select {
	case <-c.done:
		return c.state
	default:
		return nil
	}
}

// Signal sends a signal to the process, not to its group. It does nothing once the process is reaped.
func (c *Child) Signal(sig syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reaped {
		return os.ErrProcessDone
	}
	return c.cmd.Process.Signal(sig)
}

// Kill sends SIGKILL to the whole process group. It does nothing once the process is reaped: Sweep is for what is left then.
func (c *Child) Kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		killGroup(c.cmd.Process.Pid)
	}
}

func newID() string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails
	id := hex.EncodeToString(b[:])
	if outer, ok := syscall.Getenv(envID); ok {
		id = outer + "/" + id
	}
	return id
}
