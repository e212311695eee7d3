package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/enginetest/enginetest/internal/proc"
)

// step runs a part of a stop and records it.
func (r *Report) step(name string, run func() (detail string, err error)) *Step {
	began := time.Now()
	detail, err := run()
	r.Steps = append(r.Steps, Step{Name: name, Took: time.Since(began), Detail: detail, Err: err})
	return &r.Steps[len(r.Steps)-1]
}

// end stops a server that was started here.
func (s *Server) end(ctx context.Context) (r Report) {
	p := s.proc
	_, crashed := p.family.Exit()
	p.release()
	r.step(stepRequests, func() (string, error) {
		n := s.client.close(ErrStopped)
		return fmt.Sprintf("%d in flight, cancelled", n), s.client.wait(ctx, requestsTime)
	})
	p.traces.observe(p.family)
	var stop proc.StopReport
	signal := r.step(stepSignal, func() (string, error) {
		stop = p.family.Stop(ctx, p.stopOptions())
		return p.signalled(stop)
	})
	signal.Took = stop.Grace + stop.Kill
	p.log.Flush()
	r.step(stepExit, func() (string, error) { return p.judge(stop, crashed) })
	r.step(stepFamily, func() (string, error) { return descendants(stop) }).Took = stop.Settle + stop.Reap
	r.step(stepPort, func() (string, error) { return p.portsClosed() })
	r.step(stepFiles, func() (string, error) { return p.leftovers(stop.Killed || crashed) })
	r.step(stepLog, func() (string, error) { return p.log.Path(), p.log.Close() })
	if r.Err() != nil {
		r.Lines, r.LogFile = p.log.Tail(shownLines), p.log.Path()
	}
	return r
}

// requestsTime is how long cancelled requests may take to return.
const requestsTime = 5 * time.Second

// signalled says how the server took the signal.
func (p *process) signalled(stop proc.StopReport) (string, error) {
	switch {
	case stop.Signal == 0:
		return "it had exited before", nil
	case stop.Killed:
		return "", fmt.Errorf("it did not end on %s within %s, and was killed; it was gone %s later; server.Grace sets the time",
			proc.SignalName(stop.Signal), round(stop.Grace), round(stop.Kill))
	}
	return fmt.Sprintf("it ended %s after %s", round(stop.Grace), proc.SignalName(stop.Signal)), nil
}

// judge reports whether the exit status is a good one.
func (p *process) judge(stop proc.StopReport, crashed bool) (string, error) {
	if crashed {
		return "", p.exitError(true)
	}
	exit, sig := stop.Exit, p.stopOptions().Signal
	detail := exit.String()
	switch {
	case stop.Killed: // said by the step before
		return detail, nil
	case exit.Signal == sig, exit.Signal == 0 && (exit.Code == 0 || exit.Code == 128+int(sig)),
		slices.Contains(p.cfg.codes, exit.Code):
		return detail, nil
	}
	return "", fmt.Errorf("it %s after %s; server.ExitCode accepts a code", detail, proc.SignalName(sig))
}

// descendants names what outlived the command.
func descendants(stop proc.StopReport) (string, error) {
	var errs []error
	ended := 0
	for _, o := range stop.Orphans {
		if o.Fate == proc.FateEnded {
			ended++
			continue
		}
		errs = append(errs, fmt.Errorf("outlived the command, %s: %v", o.Fate, o.Process))
	}
	for _, q := range stop.Left {
		errs = append(errs, fmt.Errorf("does not die: %v", q))
	}
	if stop.Lost {
		errs = append(errs, errors.New("something killed the supervisor of its processes: some of them may be alive"))
	}
	detail := "no process is left"
	if ended > 0 {
		detail += fmt.Sprintf("; %d ended by themselves %s after the command", ended, round(stop.Settle))
	}
	if stop.Unseen != "" {
		detail += "; not seen on this system: " + stop.Unseen
	}
	return detail, errors.Join(errs...)
}

// portsClosed looks whether the ports are free again.
func (p *process) portsClosed() (string, error) {
	ports := p.traces.ports
	if p.port != 0 && !slices.Contains(ports, p.port) {
		ports = append(ports, p.port)
	}
	if len(ports) == 0 {
		return "it had none", nil
	}
	var open []string
	for _, port := range ports {
		c, err := net.DialTimeout("tcp", "127.0.0.1:"+strconv.Itoa(port), time.Second)
		switch {
		case err == nil:
			_ = c.Close()
			open = append(open, strconv.Itoa(port))
		case !errors.Is(err, syscall.ECONNREFUSED):
			open = append(open, fmt.Sprintf("%d (%v)", port, err))
		}
	}
	if len(open) > 0 {
		return "", fmt.Errorf("still answering on 127.0.0.1, port %s: a process that is not the server's has it now",
			strings.Join(open, ", "))
	}
	return fmt.Sprintf("%d closed", len(ports)), nil
}

// leftovers names what the server left in memory and on disk, and removes its temporary files. A
// killed server could not remove them itself.
func (p *process) leftovers(killed bool) (string, error) {
	found := slices.DeleteFunc(p.traces.left(), func(l leftover) bool { // which tempFiles lists
		return strings.HasPrefix(l.path, p.tmp+string(os.PathSeparator))
	})
	files := tempFiles(p.tmp)
	_ = os.RemoveAll(p.tmp)
	if !killed {
		found = append(found, files...)
	}
	var errs []error
	for _, l := range found {
		if !accepted(p.cfg.allow, l.path) {
			errs = append(errs, fmt.Errorf("%s; to accept: server.Allow(%q)", l.text, l.path))
		}
	}
	detail := "no shared memory, semaphore, socket, lock or temporary file is left"
	if killed && len(files) > 0 {
		detail += fmt.Sprintf("; %d temporary files of the killed server were removed", len(files))
	}
	return detail, errors.Join(errs...)
}
