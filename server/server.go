package server

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/server/internal/logbook"
)

// Server is a server that is ready: one that was started here, with everything that descends from
// its command, or one at a URL. Its methods for requests return an [UnsupportedError] for what its
// protocol lacks. They are safe for concurrent use.
type Server struct {
	cfg    *config
	url    string
	model  string
	client *client
	proc   *process // nil when attached
	before *Stats   // when it was attached

	once   sync.Once
	report Report
}

func newServer(cfg *config, p *process) *Server {
	s := &Server{cfg: cfg, proc: p, model: cfg.model}
	if p != nil {
		s.url = p.url()
	}
	key := cfg.apiKey
	if keys := logbook.FlagValues(cfg.command, func(name string) bool {
		return strings.Trim(name, "-") == "api-key"
	}); key == "" && len(keys) > 0 {
		key = keys[0]
	}
	s.client = newClient(cfg.name, s.url, key)
	s.client.died = s.died
	return s
}

// dyingTime bounds the wait for the exit of a server whose connection has failed.
const dyingTime = 2 * time.Second

// died returns the ExitError of a server whose connection has failed, and nil when it lives. A
// process that ends closes its files before others see its exit, and answers nothing any more: one
// that still answers is alive.
func (s *Server) died() error {
	if s.proc == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), dyingTime)
	defer cancel()
	alive := make(chan bool, 1)
	go func() {
		alive <- s.client.health(ctx, s.cfg.api.healthPath, func(int) bool { return true }) == nil
	}()
	for {
		select {
		case <-s.proc.family.Done():
			return s.proc.exitError(true)
		case yes := <-alive:
			if yes {
				return nil
			}
			alive = nil // it does not answer: the exit is awaited
		case <-ctx.Done():
			return nil
		}
	}
}

// URL is where it serves: "http://127.0.0.1:40123".
func (s *Server) URL() string { return s.url }

// Model is the model's name in requests.
func (s *Server) Model() string { return s.model }

// Protocol is what it speaks.
func (s *Server) Protocol() Protocol { return s.cfg.api.protocol }

// PIDs lists the living processes of the server: the command and everything that descends from it.
func (s *Server) PIDs() []int {
	if s.proc == nil {
		return nil
	}
	return s.proc.pids()
}

// Done returns a channel that is closed when the command has exited; nil for a server that was not
// started here.
func (s *Server) Done() <-chan struct{} {
	if s.proc == nil {
		return nil
	}
	return s.proc.family.Done()
}

// Err returns an [ExitError] when the command has exited, and nil before.
func (s *Server) Err() error {
	if s.proc == nil {
		return nil
	}
	if exit := s.proc.exitError(true); exit != nil {
		return exit
	}
	return nil
}

// Log returns the last lines that it printed, 200 at least when there were as many.
func (s *Server) Log() []Line {
	if s.proc == nil {
		return nil
	}
	return s.proc.log.Tail(0)
}

// LogFile is the path of the file with all that it printed, or "".
func (s *Server) LogFile() string {
	if s.proc == nil {
		return ""
	}
	return s.proc.log.Path()
}

// Stop ends the server and proves it gone, within the time that ctx has. The first call does the
// work; every call returns its report.
func (s *Server) Stop(ctx context.Context) Report {
	s.once.Do(func() {
		began := time.Now()
		if s.proc == nil {
			s.report = s.detach(ctx)
		} else {
			s.report = s.end(ctx)
		}
		s.report.Name, s.report.Took = s.cfg.name, time.Since(began)
	})
	return s.report
}

// Shutdown is Stop for a fixture. The error is a [StopError].
func (s *Server) Shutdown(ctx context.Context) error { return s.Stop(ctx).Err() }

// ShutdownReport returns what Shutdown did, step by step.
func (s *Server) ShutdownReport() llm.ShutdownReport {
	var r llm.ShutdownReport
	for _, step := range s.report.Steps {
		r.Phases = append(r.Phases, llm.ShutdownPhase{Name: step.Name, Took: step.Took, Detail: step.text()})
	}
	return r
}
