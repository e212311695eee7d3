package proc

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A guard is this process's side of a supervisor.
type guard struct {
	process *os.Process
	conn    *os.File
	setsid  bool     // the leader has a session of its own
	group   group    // that holds the family; "" where there is none
	log     *os.File // what the supervisor printed: a panic, or the output of another package's init
}

// Descriptors of a supervisor. Its standard input and output are /dev/null.
const (
	controlFD = 3
	filesFD   = 4 // the first of the leader's; the folder of the group follows the last, if there is one
)

// A message has a kind and an argument: a pid, a signal, a wait status or an errno.
type message struct {
	Kind byte
	Arg  uint32
}

// The kinds of messages.
const (
	msgSignal    byte = 's' // to the supervisor: signal the leader
	msgSignalAll byte = 'a'
	msgKill      byte = 'k' // kill all, until none is left
	msgStarted   byte = 'p' // from the supervisor: the leader runs, in the group
	msgBare      byte = 'b' // the leader runs, and no group holds it
	msgFailed    byte = 'e'
	msgExited    byte = 'x'
	msgGone      byte = 'z'
)

func (m message) append(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(append(b, m.Kind), m.Arg)
}

func (m message) send(w io.Writer) error {
	_, err := w.Write(m.append(nil))
	return err
}

func receive(r io.Reader) (message, error) {
	var b [5]byte
	_, err := io.ReadFull(r, b[:])
	return message{b[0], binary.LittleEndian.Uint32(b[1:])}, err
}

func clearSupported(a *syscall.SysProcAttr) { a.Setsid, a.Setpgid = false, false }

// start starts the supervisor and tells it to start the leader.
func (g *guard) start(f *Family, cmd *exec.Cmd, files []*os.File) (err error) {
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	theirs, err := g.connect()
	if err != nil {
		return err
	}
	defer theirs.Close()
	l := launchOf(f, cmd, len(files))
	group, lock := newGroup(f.id)
	if l.group = group; lock != nil {
		defer lock.Close()
		files = append(slices.Clip(files), lock)
	}
	if err := g.startSupervisor(f, theirs, files); err != nil {
		group.remove()
		return err
	}
	g.setsid = l.setsid
	err = l.send(g.conn)
	m := message{}
	if err == nil {
		m, err = receive(g.conn)
	}
	if err != nil {
		err = g.failed(err)
		group.kill()
		group.remove()
		return err
	}
	if m.Kind == msgStarted {
		g.group = group
	}
	if m.Kind == msgFailed {
		_, _ = g.process.Wait()
		return startError(cmd, syscall.Errno(m.Arg))
	}
	f.leader = int(m.Arg)
	return nil
}

// connect makes the socket and the log.
func (g *guard) connect() (theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("proc: a socket for the supervisor: %w", err)
	}
	_ = unix.SetNonblock(pair[0], true) // for Go's poller; the supervisor's end blocks
	g.conn = os.NewFile(uintptr(pair[0]), "supervisor")
	theirs = os.NewFile(uintptr(pair[1]), "supervisor")
	log, err := unix.MemfdCreate("supervisor", unix.MFD_CLOEXEC)
	if err != nil {
		_ = theirs.Close()
		return nil, fmt.Errorf("proc: a log for the supervisor: %w", err)
	}
	g.log = os.NewFile(uintptr(log), "supervisor log")
	return theirs, nil
}

func (g *guard) startSupervisor(f *Family, theirs *os.File, files []*os.File) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	env := append(os.Environ(),
		fmt.Sprintf("%s=%d:%d", envSupervisor, Inode(int(theirs.Fd())), os.Getpid()),
		envID+"="+f.id, "GOMAXPROCS=2")
	g.process, err = os.StartProcess("/proc/self/exe", []string{"enginetest: supervisor of " + f.name}, &os.ProcAttr{
		Env:   env,
		Files: append([]*os.File{null, null, g.log, theirs}, files...),
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return fmt.Errorf("proc: start of the supervisor: %w", err)
	}
	return nil
}

// failed describes a supervisor that ended before it started the leader.
func (g *guard) failed(err error) error {
	_ = g.process.Kill()
	state, waitErr := g.process.Wait()
	if waitErr != nil {
		return fmt.Errorf("proc: the supervisor did not start: %w", errors.Join(err, waitErr))
	}
	log := make([]byte, 2000)
	n, _ := g.log.ReadAt(log, 0)
	return fmt.Errorf("proc: the supervisor did not start: %v; it printed: %q", state,
		strings.TrimSpace(string(log[:n])))
}

// startError is the error that cmd.Start would have returned.
func startError(cmd *exec.Cmd, errno syscall.Errno) error {
	if cmd.Dir != "" {
		if _, err := os.Stat(cmd.Dir); err != nil {
			return &os.PathError{Op: "chdir", Path: cmd.Dir, Err: errno}
		}
	}
	return &os.PathError{Op: "fork/exec", Path: cmd.Path, Err: errno}
}

// listen takes what the supervisor says until it has gone.
func (g *guard) listen(f *Family) {
	defer f.release()
	gone := false
	for r := bufio.NewReaderSize(g.conn, 64); ; {
		m, err := receive(r)
		if err != nil {
			break
		}
		switch m.Kind {
		case msgExited:
			f.exited(exitOf(syscall.WaitStatus(m.Arg)))
		case msgGone:
			gone = true
			close(f.gone)
		}
	}
	if !gone {
		_ = g.process.Kill() // it closed its end, so it is dying
	}
	state, _ := g.process.Wait()
	if !gone {
		f.abandoned(state)
	}
	g.close()
}

// abandoned takes over from a supervisor that something killed.
func (f *Family) abandoned(state *os.ProcessState) {
	f.mu.Lock()
	f.lost = true
	f.mu.Unlock()
	f.finish(2 * time.Second)
	f.guard.group.remove()
	if _, ok := f.Exit(); !ok {
		f.exited(Exit{Code: -1, Unknown: fmt.Sprintf("its supervisor ended before it: %v", state)})
	}
	close(f.gone)
}

func (g *guard) close() {
	for _, file := range []*os.File{g.conn, g.log} {
		if file != nil {
			_ = file.Close()
		}
	}
}

func (g *guard) signal(_ *Family, sig syscall.Signal) error {
	return done(message{msgSignal, uint32(sig)}.send(g.conn))
}

func (g *guard) signalAll(_ *Family, sig syscall.Signal) error {
	return done(message{msgSignalAll, uint32(sig)}.send(g.conn))
}

func (g *guard) kill(*Family) { _ = message{Kind: msgKill}.send(g.conn) }

// held reports whether a control group holds the family: then nothing is lost with the supervisor.
func (g *guard) held() bool { return g.group != "" }

// done is os.ErrProcessDone for a supervisor that has nothing left to do.
func done(err error) error {
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrClosed) {
		return os.ErrProcessDone
	}
	return err
}

// A launch is what a supervisor starts.
type launch struct {
	path, dir string
	files     int
	setsid    bool
	group     group
	args, env []string
}

func launchOf(f *Family, cmd *exec.Cmd, files int) launch {
	l := launch{path: cmd.Path, dir: cmd.Dir, files: files, args: cmd.Args}
	l.setsid = cmd.SysProcAttr != nil && cmd.SysProcAttr.Setsid
	l.env = append(cmd.Environ(), envID+"="+f.id)
	if len(l.args) == 0 {
		l.args = []string{cmd.Path}
	}
	return l
}

// send writes the launch: its length, then its strings, each ended by a zero byte.
func (l launch) send(w io.Writer) error {
	head := []string{
		l.path, l.dir, strconv.Itoa(l.files), strconv.FormatBool(l.setsid), string(l.group), strconv.Itoa(len(l.args)),
	}
	var text strings.Builder
	for _, list := range [][]string{head, l.args, l.env} {
		for _, s := range list {
			text.WriteString(s)
			text.WriteByte(0)
		}
	}
	b := binary.LittleEndian.AppendUint32(nil, uint32(text.Len()))
	_, err := w.Write(append(b, text.String()...))
	return err
}

func receiveLaunch(r io.Reader) (l launch, err error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return l, err
	}
	text := make([]byte, binary.LittleEndian.Uint32(size[:]))
	if _, err := io.ReadFull(r, text); err != nil {
		return l, err
	}
	s := strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
	if len(s) < 7 {
		return l, errors.New("the launch is incomplete")
	}
	l.path, l.dir = s[0], s[1]
	l.files, _ = strconv.Atoi(s[2])
	l.setsid, _ = strconv.ParseBool(s[3])
	l.group = group(s[4])
	n, err := strconv.Atoi(s[5])
	if err != nil || n > len(s)-6 {
		return l, errors.New("the launch is incomplete")
	}
	l.args, l.env = s[6:6+n], s[6+n:]
	return l, nil
}
