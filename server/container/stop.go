package container

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/moby/moby/client"

	"github.com/enginetest/enginetest/server"
)

// The steps of a stop. The first is the server package's own.
const (
	stepRequests = "requests"
	stepSignal   = "signal"
	stepExit     = "exit"
	stepRemove   = "remove"
	stepFamily   = "family"
	stepPort     = "port"
	stepLog      = "log"
)

// Stop ends the container, removes it and proves it gone, within the time that ctx has. The first
// call does the work; every call returns its report.
func (s *Server) Stop(ctx context.Context) server.Report {
	s.once.Do(func() {
		began := time.Now()
		s.end(ctx)
		s.report.Name, s.report.Took = name(s.cfg.image), time.Since(began)
		if s.report.Err() != nil {
			s.report.Lines, s.report.LogFile = s.book.Tail(shownLines), s.book.Path()
		}
	})
	return s.report
}

func (s *Server) step(name string, run func() (string, error)) {
	began := time.Now()
	detail, err := run()
	s.report.Steps = append(s.report.Steps, server.Step{Name: name, Took: time.Since(began), Detail: detail, Err: err})
}

func (s *Server) end(ctx context.Context) {
	crashed := s.exitError(true)
	s.endRequests()
	s.family.look()
	killed := false
	s.step(stepSignal, func() (detail string, err error) {
		if crashed != nil {
			return "it had ended before", nil
		}
		detail, killed, err = s.signal(ctx)
		return detail, err
	})
	s.step(stepExit, func() (string, error) {
		if crashed != nil {
			return "", crashed
		}
		return s.judge(killed)
	})
	s.step(stepRemove, func() (string, error) { return "the container and its volumes are removed", s.remove(ctx) })
	s.step(stepFamily, s.family.gone)
	s.step(stepPort, s.portClosed)
	s.step(stepLog, func() (string, error) { return s.book.Path(), errors.Join(s.book.Close(), s.docker.Close()) })
}

// endRequests ends what the client has in flight. The container is not waited for: it ends.
func (s *Server) endRequests() {
	if s.Server == nil {
		return
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for _, step := range s.Server.Stop(ended).Steps {
		if step.Name == stepRequests {
			s.report.Steps = append(s.report.Steps, step)
		}
	}
}

// signal asks the container to end. The container engine kills it after the grace.
func (s *Server) signal(ctx context.Context) (detail string, killed bool, err error) {
	grace := s.cfg.grace
	if grace == 0 {
		grace = defaultGrace
	}
	if deadline, ok := ctx.Deadline(); ok {
		grace = min(grace, time.Until(deadline))
	}
	seconds := max(1, int(grace/time.Second))
	began := time.Now()
	_, err = s.docker.ContainerStop(context.WithoutCancel(ctx), s.id, client.ContainerStopOptions{Timeout: &seconds})
	if err != nil {
		return "", false, err
	}
	<-s.exited
	took := time.Since(began).Round(time.Millisecond)
	if e := s.exitError(true); e.Signal == 9 {
		return "", true, fmt.Errorf("it did not end on its stop signal within %d s, and was killed after %s; container.Grace sets the time", seconds, took)
	}
	return fmt.Sprintf("it ended %s after its stop signal", took), false, nil
}

// judge reports whether the exit status is a good one.
func (s *Server) judge(killed bool) (string, error) {
	s.mu.Lock()
	e := s.exit
	s.mu.Unlock()
	detail := fmt.Sprintf("exited with code %d", e.code)
	switch {
	case e.unknown != nil:
		return "", fmt.Errorf("its exit is not known: %w", e.unknown)
	case killed, e.code == 0, e.code == 128+15, slices.Contains(s.cfg.codes, e.code):
		return detail, nil
	}
	return "", fmt.Errorf("it %s after its stop signal; container.ExitCode accepts a code", detail)
}

// remove is `docker rm -f -v`.
func (s *Server) remove(ctx context.Context) error {
	if s.id == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
	defer cancel()
	_, err := s.docker.ContainerRemove(ctx, s.id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	return err
}

const removeTime = 30 * time.Second

func (s *Server) portClosed() (string, error) {
	c, err := net.DialTimeout("tcp", s.address, time.Second)
	if err != nil {
		return s.address + " is closed", nil
	}
	_ = c.Close()
	return "", fmt.Errorf("%s still answers", s.address)
}

// left is what a failed start left behind; how the container ended is known already.
func left(r server.Report) error {
	r.Steps = slices.DeleteFunc(slices.Clone(r.Steps), func(s server.Step) bool { return s.Name == stepExit })
	r.Lines, r.LogFile = nil, ""
	return r.Err()
}
