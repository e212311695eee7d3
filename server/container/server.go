package container

import (
	"context"
	"errors"
	"iter"
	"sync"
	"syscall"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/server"
	"github.com/enginetest/enginetest/server/internal/logbook"
)

// Server is a server in a container, ready. What it can be asked is in [server.Server].
type Server struct {
	*server.Server // nil until it is ready

	cfg     *config
	docker  client.APIClient
	id      string
	command string // masked, for messages
	address string
	started time.Time
	family  family
	book    *logbook.Book
	drained chan struct{} // the log has ended

	exited chan struct{}
	mu     sync.Mutex
	exit   exit

	once   sync.Once
	report server.Report
}

// exit is how a container ended.
type exit struct {
	code    int
	oom     bool
	unknown error
	at      time.Time
}

// ContainerID returns the container's identity.
func (s *Server) ContainerID() string { return s.id }

// PIDs lists the living processes of the container by their numbers on this machine. It is empty
// where they cannot be seen; the report of the stop says why.
func (s *Server) PIDs() []int {
	var pids []int
	for _, m := range s.family.look() {
		pids = append(pids, m.pid)
	}
	return pids
}

// Done returns a channel that is closed when the container has ended.
func (s *Server) Done() <-chan struct{} { return s.exited }

// Err returns a [server.ExitError] when the container has ended, and nil before.
func (s *Server) Err() error {
	if e := s.exitError(true); e != nil {
		return e
	}
	return nil
}

// Log returns the last lines that the server printed.
func (s *Server) Log() []server.Line { return s.book.Tail(0) }

// LogFile is the path of the file with all that it printed, or "".
func (s *Server) LogFile() string { return s.book.Path() }

// Generate answers every request, in order. A container that ends meanwhile is the error.
func (s *Server) Generate(ctx context.Context, reqs ...llm.Request) ([]llm.Output, error) {
	outs, err := s.Server.Generate(ctx, reqs...)
	return outs, s.explain(ctx, err)
}

// Chat answers a conversation. A container that ends meanwhile is the error.
func (s *Server) Chat(ctx context.Context, messages []llm.Message, p llm.SamplingParams) (llm.Output, error) {
	out, err := s.Server.Chat(ctx, messages, p)
	return out, s.explain(ctx, err)
}

// Stream returns the deltas of one request. A container that ends meanwhile is the error.
func (s *Server) Stream(ctx context.Context, req llm.Request) iter.Seq2[llm.Delta, error] {
	return func(yield func(llm.Delta, error) bool) {
		for d, err := range s.Server.Stream(ctx, req) {
			if !yield(d, s.explain(ctx, err)) {
				return
			}
		}
	}
}

// explain adds the container's end to the failure of a request.
func (s *Server) explain(ctx context.Context, err error) error {
	var refused *server.APIError
	if err == nil || ctx.Err() != nil || errors.As(err, &refused) || errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	select {
	case <-s.exited:
		return errors.Join(s.exitError(true), err)
	case <-time.After(dyingTime):
	case <-ctx.Done():
	}
	return err
}

// dyingTime bounds the wait for the end of a container whose connection has failed.
const dyingTime = 2 * time.Second

// follow reads the container's log, and waits for its end.
func (s *Server) follow() {
	s.drained = make(chan struct{})
	go func() {
		defer close(s.drained)
		logs, err := s.docker.ContainerLogs(context.Background(), s.id,
			client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Follow: true})
		if err != nil {
			return
		}
		defer logs.Close()
		_, _ = stdcopy.StdCopy(s.book, s.book, logs)
	}()
	go func() {
		s.family.awaitInit()
		e := s.inspectExit()
		select {
		case <-s.drained: // its last words
		case <-time.After(drainTime):
		}
		s.mu.Lock()
		s.exit = e
		s.mu.Unlock()
		close(s.exited)
	}()
}

const (
	drainTime    = time.Second
	inspectPause = 20 * time.Millisecond
)

// inspectExit asks for the container's end until there is one. The container engine learns of it a
// moment after its process has ended.
func (s *Server) inspectExit() exit {
	for pause := time.Millisecond; ; pause = min(2*pause, inspectPause) {
		res, err := s.docker.ContainerInspect(context.Background(), s.id, client.ContainerInspectOptions{})
		if err != nil {
			return exit{code: -1, unknown: err, at: time.Now()}
		}
		if st := res.Container.State; st != nil && !st.Running && st.Status != "created" {
			return exit{code: st.ExitCode, oom: st.OOMKilled, at: time.Now()}
		}
		time.Sleep(pause)
	}
}

// exitError describes the container's end; nil while it runs.
func (s *Server) exitError(ready bool) *server.ExitError {
	select {
	case <-s.exited:
	default:
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.book.Flush()
	e := &server.ExitError{
		Name: name(s.cfg.image), Command: s.command, PID: s.family.init, Code: s.exit.code,
		After: s.exit.at.Sub(s.started), Ready: ready, Lines: s.book.Tail(shownLines), LogFile: s.book.Path(),
	}
	if e.Code > 128 && e.Code < 128+65 {
		e.Code, e.Signal = -1, syscall.Signal(e.Code-128)
	}
	if s.exit.oom {
		e.OOM = "the container engine says so"
	}
	return e
}

// Shutdown is Stop for a fixture. The error is a [server.StopError].
func (s *Server) Shutdown(ctx context.Context) error { return s.Stop(ctx).Err() }

// ShutdownReport returns what Shutdown did, step by step.
func (s *Server) ShutdownReport() llm.ShutdownReport {
	var r llm.ShutdownReport
	for _, step := range s.report.Steps {
		detail := step.Detail
		if step.Err != nil {
			detail = "FAILED: " + step.Err.Error()
		}
		r.Phases = append(r.Phases, llm.ShutdownPhase{Name: step.Name, Took: step.Took, Detail: detail})
	}
	return r
}
