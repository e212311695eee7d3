package proc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"sync"
	"syscall"
	"time"
)

// A Family is a command and everything that descends from it.
//
// On Linux a supervisor stands between this process and the command: a second run of this binary
// that never reaches main. It adopts what the command's descendants leave behind, so a process
// belongs to the family whatever it does: new session, double fork, cleared environment, closed
// files. When this process ends, in whatever way, the supervisor kills the family.
//
// Elsewhere a family is a process group, and Unseen says what that misses.
type Family struct {
	id      string // see envID
	name    string
	leader  int
	guard   guard
	outputs []*output
	oom     map[string]int

	done chan struct{} // the leader has exited
	gone chan struct{} // no process is left
	over chan struct{} // this process holds nothing of the family any more

	mu     sync.Mutex
	exit   Exit
	ours   bool // this process sent SIGKILL
	lost   bool // the supervisor was killed
	stop   sync.Once
	report StopReport
}

// Start starts cmd as the leader of a family, in a process group of its own.
//
// Stdin must be nil or a file. Stdout and Stderr may be any writers: a goroutine copies to those
// that are no files, and no wait of the family depends on who else holds the pipe. Of SysProcAttr
// only Setsid is honored. Don't call cmd.Start, cmd.Wait or cmd.StdoutPipe; cmd's context has no
// meaning here.
func Start(cmd *exec.Cmd) (*Family, error) {
	if err := check(cmd); err != nil {
		return nil, err
	}
	f := &Family{
		id: newID(), name: filepath.Base(cmd.Path), oom: oomKills(),
		done: make(chan struct{}), gone: make(chan struct{}), over: make(chan struct{}),
	}
	files, release, err := f.files(cmd)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := f.guard.start(f, cmd, files); err != nil {
		for _, o := range f.outputs {
			_ = o.r.Close()
		}
		return nil, err
	}
	for _, o := range f.outputs {
		go o.copy()
	}
	go f.guard.listen(f)
	return f, nil
}

func check(cmd *exec.Cmd) error {
	if cmd.Err != nil {
		return cmd.Err
	}
	if cmd.Process != nil {
		return errors.New("proc: the command was started before")
	}
	if _, file := cmd.Stdin.(*os.File); cmd.Stdin != nil && !file {
		return fmt.Errorf("proc: Stdin is a %T, must be nil or an *os.File", cmd.Stdin)
	}
	if cmd.SysProcAttr == nil {
		return nil
	}
	rest := *cmd.SysProcAttr
	clearSupported(&rest)
	if !reflect.DeepEqual(rest, syscall.SysProcAttr{}) {
		return errors.New("proc: SysProcAttr may only set Setsid and Setpgid")
	}
	return nil
}

// Leader returns the process id of the command.
func (f *Family) Leader() int { return f.leader }

// Done returns a channel that is closed when the leader has exited and its writers have what it
// wrote until then. Others of the family may live on.
func (f *Family) Done() <-chan struct{} { return f.done }

// Gone returns a channel that is closed when no process of the family is left.
func (f *Family) Gone() <-chan struct{} { return f.gone }

// Exit returns how the leader ended; ok is false while it lives.
func (f *Family) Exit() (e Exit, ok bool) {
	select {
	case <-f.done:
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.exit, true
	default:
		return Exit{}, false
	}
}

// Signal sends sig to the leader. It returns os.ErrProcessDone once the leader has exited.
func (f *Family) Signal(sig syscall.Signal) error {
	select {
	case <-f.done:
		return os.ErrProcessDone
	default:
		f.sends(sig)
		return f.guard.signal(f, sig)
	}
}

// SignalAll sends sig to every process of the family.
func (f *Family) SignalAll(sig syscall.Signal) error {
	select {
	case <-f.gone:
		return os.ErrProcessDone
	default:
		f.sends(sig)
		return f.guard.signalAll(f, sig)
	}
}

// Kill sends SIGKILL to every process of the family, again and again until Gone.
func (f *Family) Kill() {
	f.sends(syscall.SIGKILL)
	f.guard.kill(f)
}

func (f *Family) sends(sig syscall.Signal) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ours = f.ours || sig == syscall.SIGKILL
}

// exited records the end of the leader.
func (f *Family) exited(e Exit) {
	f.mu.Lock()
	e.At = time.Now()
	if e.Signal == syscall.SIGKILL && !f.ours {
		e.OOM = oomRise(f.oom, oomKills())
	}
	f.exit = e
	f.mu.Unlock()
	for _, o := range f.outputs {
		o.drain()
	}
	close(f.done)
}

// release waits until the copying ends, which it does now that no process holds a pipe: unless one
// of them was handed to a stranger.
func (f *Family) release() {
	for _, o := range f.outputs {
		o.end()
	}
	close(f.over)
}
