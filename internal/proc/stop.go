package proc

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"
)

// StopOptions say how Stop ends a family. The zero value sends SIGTERM and kills at once what does
// not obey at once.
type StopOptions struct {
	Signal syscall.Signal // to the leader; SIGTERM by default
	Grace  time.Duration  // from the signal to SIGKILL
	Settle time.Duration  // how long the others may take to end by themselves after the leader
	Limit  time.Duration  // how long to wait for what SIGKILL ends; 10 s by default

	// Forward sends Signal to the others too when Settle is over, and returns them Grace: a wrapper
	// script does not hand on the signal that ends it.
	Forward bool
}

// killLimit is the default of Limit. What takes longer is in an uninterruptible system call.
const killLimit = 10 * time.Second

// A StopReport says what Stop did, and how long each step took.
type StopReport struct {
	Signal  syscall.Signal // what the leader got; 0 when it had exited before
	Grace   time.Duration  // from the signal to the leader's exit, or to SIGKILL
	Killed  bool           // the leader ended by SIGKILL, after the grace
	Kill    time.Duration  // from SIGKILL to the leader's exit
	Exit    Exit
	Orphans []Orphan      // what outlived the leader
	Settle  time.Duration // that the orphans took to end, or were given
	Reap    time.Duration // from the SIGKILL of the orphans to the last one's end
	Left    []Process     // what does not die
	Lost    bool          // the supervisor was killed before, and what hid from the mark may be alive
	Unseen  string        // what this system does not show; empty on Linux
}

// An Orphan is a process that outlived its leader.
type Orphan struct {
	Process
	Fate Fate
}

// A Fate is how an orphan ended.
type Fate string

// The fates.
const (
	FateEnded    Fate = "ended by itself"
	FateSignaled Fate = "ended on the signal"
	FateKilled   Fate = "killed"
	FateLeft     Fate = "does not die"
)

// String formats the report, one line per step.
func (r StopReport) String() string {
	var b strings.Builder
	if r.Signal != 0 {
		fmt.Fprintf(&b, "%s: waited %v\n", SignalName(r.Signal), r.Grace.Round(time.Microsecond))
	}
	if r.Killed {
		fmt.Fprintf(&b, "SIGKILL: waited %v\n", r.Kill.Round(time.Microsecond))
	}
	fmt.Fprintf(&b, "the leader %v\n", r.Exit)
	for _, o := range r.Orphans {
		fmt.Fprintf(&b, "%v outlived it: %s\n", o.Process, o.Fate)
	}
	if len(r.Orphans) > 0 {
		fmt.Fprintf(&b, "orphans: waited %v, killed in %v\n", r.Settle.Round(time.Microsecond),
			r.Reap.Round(time.Microsecond))
	}
	if r.Lost {
		b.WriteString("something killed the supervisor: processes without the family's mark may be alive\n")
	}
	if r.Unseen != "" {
		fmt.Fprintf(&b, "not seen: %s\n", r.Unseen)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Stop ends the family: a signal and a grace for the leader, SIGKILL, then the same for what
// outlived it. It returns when no process is left and this process holds nothing of the family.
// When ctx ends, the graces do, but not the wait for what SIGKILL ends. A second call returns the
// first one's report.
func (f *Family) Stop(ctx context.Context, o StopOptions) StopReport {
	f.stop.Do(func() {
		s := stopping{f, ctx, o, &f.report}
		s.options.Signal = cmp.Or(o.Signal, syscall.SIGTERM)
		s.options.Limit = cmp.Or(o.Limit, killLimit)
		s.stopLeader()
		s.stopOrphans()
		s.conclude()
	})
	return f.report
}

type stopping struct {
	*Family
	ctx     context.Context
	options StopOptions
	r       *StopReport
}

// wait waits for the end of a channel or of the context, for at most d.
func (s *stopping) wait(done <-chan struct{}, d time.Duration) (ok bool, took time.Duration) {
	began := time.Now()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true, time.Since(began)
	default:
	}
	select {
	case <-done:
		return true, time.Since(began)
	case <-timer.C:
	case <-s.ctx.Done():
	}
	return false, time.Since(began)
}

func (s *stopping) stopLeader() {
	if s.Signal(s.options.Signal) != nil {
		return // it had exited
	}
	s.r.Signal = s.options.Signal
	var exited bool
	if exited, s.r.Grace = s.wait(s.done, s.options.Grace); exited {
		return
	}
	began := time.Now()
	_ = s.Signal(syscall.SIGKILL)
	select {
	case <-s.done:
	case <-time.After(s.options.Limit):
	}
	s.r.Killed, s.r.Kill = true, time.Since(began)
}

// stopOrphans names what outlived the leader before it ends it.
func (s *stopping) stopOrphans() {
	s.wait(s.gone, min(s.options.Settle, time.Millisecond)) // most families end with their leader
	s.meet()
	var ended bool
	if ended, s.r.Settle = s.wait(s.gone, s.options.Settle); ended {
		s.fate(FateEnded)
		return
	}
	s.meet()
	s.fate(FateEnded)
	if s.options.Forward {
		_ = s.SignalAll(s.options.Signal)
		ended, took := s.wait(s.gone, s.options.Grace)
		s.r.Settle += took
		if ended {
			s.fate(FateSignaled)
			return
		}
		s.meet()
		s.fate(FateSignaled)
	}
	began := time.Now()
	s.Kill()
	select {
	case <-s.gone:
	case <-time.After(s.options.Limit):
		s.r.Left, _ = s.Processes()
	}
	s.meet()
	s.fate(FateKilled)
	s.r.Reap = time.Since(began)
}

// meet adds the processes that live now to the orphans.
func (s *stopping) meet() {
	select {
	case <-s.gone:
		return
	default:
	}
	living, _ := s.Processes()
	for _, p := range living {
		if p.PID != s.leader && s.orphan(p) == nil {
			s.r.Orphans = append(s.r.Orphans, Orphan{Process: p})
		}
	}
}

func (s *stopping) orphan(p Process) *Orphan {
	for i := range s.r.Orphans {
		if o := &s.r.Orphans[i]; o.PID == p.PID && o.start == p.start {
			return o
		}
	}
	return nil
}

// fate records how the orphans ended that have ended since the last call.
func (s *stopping) fate(how Fate) {
	living := map[int]int64{}
	select {
	case <-s.gone:
	default:
		list, _ := s.Processes()
		for _, p := range list {
			living[p.PID] = p.start
		}
	}
	for i := range s.r.Orphans {
		o := &s.r.Orphans[i]
		if start, ok := living[o.PID]; o.Fate == "" && (!ok || start != o.start) {
			o.Fate = how
		}
	}
}

func (s *stopping) conclude() {
	s.r.Exit, _ = s.Exit()
	s.r.Unseen = Unseen()
	s.mu.Lock()
	s.r.Lost = s.lost && !s.guard.held()
	s.mu.Unlock()
	for i := range s.r.Orphans {
		s.r.Orphans[i].Fate = cmp.Or(s.r.Orphans[i].Fate, FateLeft)
	}
	if len(s.r.Left) == 0 {
		<-s.over
	}
}
