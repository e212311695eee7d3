package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/enginetest/enginetest/internal/backoff"
)

// envSupervisor tells a process that it is a supervisor: "inode:pid" of its socket and its parent.
const envSupervisor = "ENGINETEST_SUPERVISOR"

// A supervisor never reaches main, nor the init of a package that imports this one. The init of
// other packages may have run: their output is in the guard's log.
func init() {
	env, ok := syscall.Getenv(envSupervisor) // not os.Getenv: it would become an input of the test cache
	if !ok {
		return
	}
	_ = os.Unsetenv(envSupervisor)
	var inode uint64
	var parent int
	if n, _ := fmt.Sscanf(env, "%d:%d", &inode, &parent); n != 2 || inode == 0 || Inode(controlFD) != inode {
		return
	}
	supervise(parent)
	syscall.Exit(0) // not os.Exit: no coverage, no exit hooks
}

// A supervisor is the parent of a leader, and of every process of the family whose own parent ends.
type supervisor struct {
	conn   control
	mu     sync.Mutex // held while processes are reaped, and while they are signaled by number
	leader int        // 0 when it is reaped
	group  group      // that holds the family; "" where there is none
}

// A control is the supervisor's end of the socket. It blocks: this process has nothing else to do.
type control int

func (c control) Read(b []byte) (int, error) {
	for {
		n, err := syscall.Read(int(c), b)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

func (c control) Write(b []byte) (int, error) { return syscall.Write(int(c), b) }

func supervise(parent int) {
	s := &supervisor{conn: controlFD}
	syscall.CloseOnExec(controlFD)
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	l, err := receiveLaunch(s.conn)
	if err != nil {
		return // the parent has ended
	}
	pid, held, err := l.start()
	if !held {
		l.group.remove()
	} else {
		s.group = l.group
	}
	if err != nil {
		var errno syscall.Errno
		_ = errors.As(err, &errno)
		s.tell(msgFailed, uint32(errno))
		return
	}
	s.leader = pid
	signal.Ignore(terminal...) // only now: the leader would inherit it
	started := msgBare
	if held {
		started = msgStarted
	}
	s.tell(started, uint32(pid))
	go s.watch(parent)
	go s.serve()
	s.reap()
	s.group.remove()
}

// terminal are the signals that would end this process, though they mean the family.
var terminal = []os.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGPIPE,
}

// start starts the leader, in the group if the kernel lets it, and lets go of its files.
func (l launch) start() (pid int, held bool, err error) {
	fds := make([]uintptr, l.files)
	for i := range fds {
		fds[i] = uintptr(filesFD + i)
		syscall.CloseOnExec(filesFD + i)
	}
	attr := &syscall.ProcAttr{
		Dir: l.dir, Env: l.env, Files: fds,
		// The death signal follows this thread: it is the main thread, which ends with the process.
		Sys: &syscall.SysProcAttr{Setsid: l.setsid, Setpgid: !l.setsid, Pdeathsig: syscall.SIGKILL},
	}
	if l.group != "" {
		lock := filesFD + l.files // stays open: the group is swept when this process has ended
		syscall.CloseOnExec(lock)
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, lock
		pid, err = syscall.ForkExec(l.path, l.args, attr)
		held, attr.Sys.UseCgroupFD = err == nil, false
	}
	if !held {
		pid, err = syscall.ForkExec(l.path, l.args, attr)
	}
	for _, fd := range fds {
		_ = syscall.Close(int(fd))
	}
	return pid, held, err
}

// tell fails when the parent has ended, which watch sees.
func (s *supervisor) tell(kind byte, arg uint32) { _ = message{kind, arg}.send(s.conn) }

// reap takes the ends of all children until there are none. Then there are no descendants either.
func (s *supervisor) reap() {
	for {
		// The dead keep their numbers until the lock is held.
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err == unix.EINTR {
			continue
		}
		if !s.reapDead() {
			return
		}
	}
}

// reapDead reaps the children that are dead. It reports whether there may be others.
func (s *supervisor) reapDead() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var exit []byte
	defer func() {
		if len(exit) > 0 { // in one piece: who waits for the leader learns at once that nothing else is left
			_, _ = s.conn.Write(exit)
		}
	}()
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			exit = message{Kind: msgGone}.append(exit)
			return false
		case pid == 0:
			return true
		case pid == s.leader:
			s.leader = 0
			exit = message{msgExited, uint32(ws)}.append(nil)
		}
	}
}

// watch kills the family when the parent ends. The end of the socket, which serve sees, says the
// same unless a fork of the parent holds it.
func (s *supervisor) watch(parent int) {
	fd, err := unix.PidfdOpen(parent, 0)
	if err != nil && err != unix.ESRCH {
		return
	}
	if err == nil && os.Getppid() == parent {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		for {
			if _, err := unix.Poll(poll, -1); err != unix.EINTR {
				break
			}
		}
	}
	s.killAll()
}

// serve does what the parent asks, and kills the family when the parent has closed the socket.
func (s *supervisor) serve() {
	for {
		m, err := receive(s.conn)
		if err != nil {
			s.killAll()
			return
		}
		switch m.Kind {
		case msgSignal:
			s.signalLeader(syscall.Signal(m.Arg))
		case msgSignalAll:
			s.signalAll(syscall.Signal(m.Arg))
		case msgKill:
			go s.killAll()
		}
	}
}

func (s *supervisor) signalLeader(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leader != 0 {
		_ = syscall.Kill(s.leader, sig)
	}
}

// signalAll signals every descendant once.
func (s *supervisor) signalAll(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range descendants(os.Getpid()) {
		m.signal(sig)
	}
}

// killAll kills until none is left, which is the end of this process. One in an uninterruptible
// system call makes it wait.
func (s *supervisor) killAll() {
	for looks := backoff.New(200*time.Microsecond, 20*time.Millisecond); ; {
		s.group.kill()
		s.signalAll(syscall.SIGKILL)
		time.Sleep(looks.Next())
	}
}
