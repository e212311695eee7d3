package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/enginetest/enginetest/internal/backoff"
)

// maxStarts bounds the starts for ports that other programs took in between.
const maxStarts = 5

// start starts a server and waits until it is ready.
func start(ctx context.Context, cfg *config) (*Server, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if cfg.api == nil {
		return nil, errors.New("server: Speaks with an unknown protocol")
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, defaultStart,
			fmt.Errorf("the start timeout of %s, because the context had no deadline", defaultStart))
		defer cancel()
	}
	if cfg.url != "" {
		return attach(ctx, cfg)
	}
	for try := 1; ; try++ {
		s, err := startOnce(ctx, cfg, try == 1)
		if !errors.Is(err, errPortTaken) || try == maxStarts {
			return s, err
		}
	}
}

// errPortTaken marks the end of a server whose port another program had.
var errPortTaken = errors.New("its port was taken by another program")

// startOnce starts a server on one port. The port stays reserved until the server listens, if
// reserved is set: a server that cannot listen on a port that is reserved is started again without.
func startOnce(ctx context.Context, cfg *config, reserved bool) (*Server, error) {
	p, err := launch(cfg, reserved)
	if err != nil {
		return nil, err
	}
	s := newServer(cfg, p)
	err = s.awaitReady(ctx)
	p.release()
	if err == nil {
		err = s.setUp(ctx)
	}
	if exit := p.exitError(true); err == nil && exit != nil {
		err = exit
	}
	if err == nil {
		p.traces.observe(p.family)
		return s, nil
	}
	var exit *ExitError
	if errors.As(err, &exit) && p.portTaken() {
		err = fmt.Errorf("%w: %w", errPortTaken, err)
	}
	report := s.Stop(context.WithoutCancel(ctx))
	if left := report.left(); left != nil {
		err = fmt.Errorf("%w\nand what it left behind: %w", err, left)
	}
	return nil, err
}

// awaitReady waits until every check passes and the port is the server's own.
func (s *Server) awaitReady(ctx context.Context) error {
	checks := s.cfg.ready
	if len(checks) == 0 && s.proc.port != 0 {
		checks = []check{s.cfg.api.health()}
	}
	for _, c := range checks {
		if err := s.await(ctx, c); err != nil {
			return err
		}
	}
	if s.proc.port == 0 || s.cfg.foreign {
		return nil
	}
	return s.await(ctx, check{"a process of the server listens on its port", func(context.Context, *Server) error {
		if ours, known := s.proc.owner(); known && !ours {
			return errors.New("none does; what answers there is another program, which server.AnyListener accepts")
		}
		return nil
	}})
}

// await tries a check until it passes, the server dies, or time is over.
func (s *Server) await(ctx context.Context, c check) error {
	p := s.proc
	var last error
	looks := backoff.New(2*time.Millisecond, 100*time.Millisecond)
	for {
		if exit := p.exitError(false); exit != nil { // before the answer counts: it may be another program's
			return exit
		}
		if last = s.try(ctx, c); last == nil {
			return nil
		}
		more := p.log.Next()
		select {
		case <-p.family.Done():
			return p.exitError(false)
		case <-ctx.Done():
			return s.notReady(c, last, context.Cause(ctx))
		case <-more: // it has printed something: perhaps that it is ready
			looks.Shorten(10 * time.Millisecond)
			s.rest(ctx, looks.Next())
		case <-time.After(looks.Next()):
		}
		if silent := p.log.Silent(); s.cfg.stall > 0 && silent > s.cfg.stall {
			return s.notReady(c, last, fmt.Errorf("nothing printed for %s; server.StallTimeout is %s", round(silent),
				s.cfg.stall))
		}
	}
}

// rest sleeps for d, or until the server dies or ctx ends.
func (s *Server) rest(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	case <-s.proc.family.Done():
	}
}

// try runs a check once. It ends with the server.
func (s *Server) try(ctx context.Context, c check) error {
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout, fmt.Errorf("no answer within %s", probeTimeout))
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-s.proc.family.Done():
			cancel()
		case <-stop:
		}
	}()
	return c.probe(ctx, s)
}

// probeTimeout bounds one try of a check: a server that accepts and does not answer is asked again.
const probeTimeout = 5 * time.Second

func (s *Server) notReady(c check, last, cause error) *NotReadyError {
	p := s.proc
	p.log.Flush()
	return &NotReadyError{
		Name: s.cfg.name, Command: p.command, PID: p.family.Leader(), Waited: time.Since(p.started), Silent: p.log.Silent(),
		Probe: c.name, Last: last, Lines: p.log.Tail(shownLines), LogFile: p.log.Path(), Cause: cause,
	}
}

// setUp does what a protocol needs before the first request.
func (s *Server) setUp(ctx context.Context) error {
	if s.cfg.api.setUp == nil {
		return nil
	}
	err := s.cfg.api.setUp(ctx, s)
	if err == nil {
		return nil
	}
	var refused *APIError
	if errors.As(err, &refused) {
		return err
	}
	if exit := s.died(); exit != nil {
		return fmt.Errorf("%w\nduring: %w", exit, err)
	}
	return err
}
