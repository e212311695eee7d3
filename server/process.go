package server

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/enginetest/enginetest/internal/proc"
	"github.com/enginetest/enginetest/server/internal/logbook"
)

// process is a started server's family, with its log and what it may leave behind.
type process struct {
	cfg     *config
	command string // masked, for messages
	family  *proc.Family
	log     *logbook.Book
	started time.Time
	port    int
	release func() // of the port; idempotent
	tmp     string
	traces  *traces
}

// launch starts the command, without waiting until it is ready.
func launch(cfg *config, reserved bool) (*process, error) {
	p := &process{cfg: cfg, release: func() {}}
	err := p.launch(reserved)
	if err == nil {
		return p, nil
	}
	p.release()
	if p.tmp != "" {
		_ = os.RemoveAll(p.tmp)
	}
	return nil, err
}

func (p *process) launch(reserved bool) (err error) {
	if p.cfg.wantsPort() {
		if p.port, p.release, err = reserve(); err != nil {
			return fmt.Errorf("server: no free port: %w", err)
		}
		if !reserved {
			p.release()
		}
	}
	if p.tmp, err = os.MkdirTemp("", "et-"); err != nil { // short: the path of a unix socket has at most 107 bytes
		return fmt.Errorf("server: %w", err)
	}
	command, vars := p.cfg.expand(p.port, p.tmp)
	env := environment(os.Environ(), append([]string{"TMPDIR=" + p.tmp}, vars...))
	mask := logbook.Masker(command, env, p.cfg.secrets)
	p.command = mask.Replace(strings.Join(command, " "))
	if p.log, err = logbook.New(p.cfg.name, p.cfg.logDir, p.cfg.log, mask); err != nil {
		return err
	}
	p.traces = newTraces()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = env, p.cfg.dir, p.log, p.log
	p.started = time.Now()
	if p.family, err = proc.Start(cmd); err != nil {
		return errors.Join(fmt.Errorf("server: %s was not started: %w", p.cfg.name, err), p.log.Close())
	}
	return nil
}

func (p *process) url() string {
	if p.port == 0 {
		return ""
	}
	return "http://127.0.0.1:" + strconv.Itoa(p.port)
}

// exitError describes the server's end; nil while it lives.
func (p *process) exitError(ready bool) *ExitError {
	exit, over := p.family.Exit()
	if !over {
		return nil
	}
	p.log.Flush()
	return &ExitError{
		Name: p.cfg.name, Command: p.command, PID: p.family.Leader(),
		Code: exit.Code, Signal: exit.Signal, OOM: exit.OOM, After: exit.At.Sub(p.started), Ready: ready,
		Lines: p.log.Tail(shownLines), LogFile: p.log.Path(),
	}
}

// pids lists the family's living processes.
func (p *process) pids() []int {
	list, _ := p.family.Processes()
	pids := make([]int, len(list))
	for i, q := range list {
		pids[i] = q.PID
	}
	return pids
}

// owner tells whose the port is. known is false while none of the family listens on it, and where
// that cannot be seen.
func (p *process) owner() (ours, known bool) {
	if proc.Unseen() != "" {
		return false, false
	}
	list, err := p.family.Processes()
	if err != nil {
		return false, false
	}
	suffix := ":" + strconv.Itoa(p.port)
	for _, q := range list {
		if slices.ContainsFunc(q.Listening, func(s string) bool { return strings.HasSuffix(s, suffix) }) {
			return true, true
		}
	}
	return false, true
}

// portTaken reports whether the server died because its port was not free: another program has it,
// or the server says so.
func (p *process) portTaken() bool {
	if p.port == 0 {
		return false
	}
	p.release()
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(p.port))
	if errors.Is(err, syscall.EADDRINUSE) {
		return true
	}
	if err == nil {
		_ = l.Close()
	}
	return slices.ContainsFunc(p.log.Tail(0), func(l Line) bool {
		text := strings.ToLower(l.Text)
		return slices.ContainsFunc(inUseWords, func(w string) bool { return strings.Contains(text, w) })
	})
}

// inUseWords are how servers say that their port is taken; libc's text, and those that have their
// own.
var inUseWords = []string{
	"address already in use", "address in use", "eaddrinuse", "couldn't bind", "failed to bind",
	"port is already",
}

// stopOptions are those of the family's end.
func (p *process) stopOptions() proc.StopOptions {
	return proc.StopOptions{
		Signal: cmp.Or(p.cfg.signal, syscall.SIGTERM), Grace: cmp.Or(p.cfg.grace, defaultGrace),
		Settle: settleTime, Forward: true,
	}
}

// settleTime is how long workers may take to see that their parent has ended.
const settleTime = time.Second
