package gpuwait

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// fate is what an engine leaves behind.
type fate string

const (
	fateClean    fate = "clean"
	fateUnused   fate = "no GPU used"
	fateKeeps    fate = "process keeps memory"
	fateStranded fate = "memory never reclaimed"
)

// schedule is one random life of an engine among neighbours.
type schedule struct {
	seed   uint64
	see    visibility
	fate   fate
	self   int   // the test's own process, when the engine runs in it
	had    int64 // what self held before the engine
	leaked int64
	pids   []int // that leak
	log    []string
}

func (s *schedule) String() string {
	return fmt.Sprintf("seed %d: %s, %s, %s leaked by %v\n    %s", s.seed, s.see, s.fate, size(s.leaked), s.pids,
		strings.Join(s.log, "\n    "))
}

// play runs a schedule in a bubble and returns the report on it.
func play(t *testing.T, seed uint64) (s *schedule, r AccountReport, err error) {
	rng := rand.New(rand.NewPCG(seed, 1))
	s = &schedule{seed: seed}
	s.see = pick(rng, seesAll, seesAll, seesAll, seesOwn, seesNone, seesRefused, seesNoBytes)
	s.fate = pick(rng, fateClean, fateClean, fateUnused, fateKeeps, fateKeeps, fateStranded)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(rng, s.see)
		w.turmoil = pick(rng, 0, 0.02, 0.2)
		s.neighbours(w)
		s.predecessor(w)
		s.inProcess(w)
		o := newOptions([]AccountOption{Devices("all"), ownedBy(&owners{})}, AccountOption.account)
		o.hidden = func([]Device) string {
			if s.see == seesOwn || s.see == seesNone {
				return "processes of other containers are not listed"
			}
			return ""
		}
		var a *Account
		a, err = newAccount(t.Context(), w, w.isFamily, w, o)
		require.NoError(t, err)
		pids := s.engine(w)
		a.Read()
		time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond)
		a.Read()
		s.shutdown(w, pids)
		r, err = a.Returned(t.Context(), Timeout(3*time.Second), KeepWaiting())
	})
	return s, r, err
}

func pick[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

func (s *schedule) note(w *world, format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf("%v ", time.Since(w.start))+fmt.Sprintf(format, args...))
}

// neighbours come, go, grow, shrink and crash for ten seconds.
func (s *schedule) neighbours(w *world) {
	for range w.rng.IntN(5) {
		var pid int
		grow := func() int64 { return simMiB * (1 + w.rng.Int64N(12<<10)) }
		come := func() {
			if w.used() < simTotal-30*simGiB {
				pid = w.add(simProcess{bytes: grow(), gpu: true})
				s.note(w, "neighbour %d comes with %s", pid, size(w.procs[pid].bytes))
			}
		}
		if w.rng.IntN(2) == 0 {
			come()
		} else {
			w.at(time.Duration(w.rng.IntN(6000))*time.Millisecond, come)
		}
		for range w.rng.IntN(8) {
			crash, bytes := w.rng.IntN(4) == 0, grow()
			w.at(time.Duration(w.rng.IntN(10000))*time.Millisecond, func() {
				switch p := w.procs[pid]; {
				case p == nil:
					come()
				case crash:
					s.note(w, "neighbour %d crashes with %s", pid, size(p.bytes))
					w.end(pid, simReclaim)
				default:
					s.note(w, "neighbour %d has %s, had %s", pid, size(bytes), size(p.bytes))
					p.bytes = bytes
				}
			})
		}
	}
}

// predecessor is an earlier engine of the family that has just ended: its memory is on its way
// back.
func (s *schedule) predecessor(w *world) {
	if w.rng.IntN(3) > 0 {
		return
	}
	pid := w.add(simProcess{bytes: simGiB * (1 + w.rng.Int64N(20)), family: true, gpu: true})
	s.note(w, "predecessor %d with %s", pid, size(w.procs[pid].bytes))
	w.at(time.Duration(w.rng.IntN(200))*time.Millisecond, func() {
		s.note(w, "predecessor %d ends", pid)
		w.end(pid, time.Duration(w.rng.IntN(200))*time.Millisecond)
	})
}

// inProcess makes the engine one of the test's own process, which may have a CUDA context of its
// own.
func (s *schedule) inProcess(w *world) {
	if w.rng.IntN(3) > 0 || s.fate == fateUnused || s.fate == fateStranded {
		return
	}
	p := simProcess{family: true}
	if w.rng.IntN(2) == 0 {
		p.gpu, p.bytes = true, simMiB*(300+w.rng.Int64N(600))
	}
	s.self, s.had = w.add(p), p.bytes
	s.note(w, "own process %d with %s", s.self, size(s.had))
}

// engine starts the processes of the family.
func (s *schedule) engine(w *world) (pids []int) {
	w.do(func() {
		if s.self > 0 {
			p := w.procs[s.self]
			p.gpu, p.bytes = true, p.bytes+simMiB*(32+w.rng.Int64N(8<<10))
			pids = []int{s.self}
			s.note(w, "engine in %d, which has %s now", s.self, size(p.bytes))
			return
		}
		for range 1 + w.rng.IntN(3) {
			p := simProcess{family: true}
			if s.fate != fateUnused {
				p.gpu, p.bytes = true, simMiB*(32+w.rng.Int64N(8<<10))
			}
			pid := w.add(p)
			pids = append(pids, pid)
			s.note(w, "engine %d with %s", pid, size(p.bytes))
		}
	})
	return pids
}

// shutdown ends the engine, but for what it leaves behind.
func (s *schedule) shutdown(w *world, pids []int) {
	w.do(func() {
		left := pids[w.rng.IntN(len(pids))]
		for _, pid := range pids {
			p := w.procs[pid]
			switch {
			case pid == s.self && s.fate == fateClean:
				p.bytes = s.had
				s.note(w, "engine in %d is shut down", pid)
			case pid != left || s.fate == fateClean || s.fate == fateUnused:
				s.note(w, "engine %d ends", pid)
				w.end(pid, time.Duration(w.rng.IntN(200))*time.Millisecond)
			case s.fate == fateKeeps:
				p.bytes = min(p.bytes, s.had+simMiB*(16+w.rng.Int64N(4096)))
				s.leaked, s.pids = p.bytes-s.had, []int{pid}
				s.note(w, "engine %d keeps %s", pid, size(p.bytes))
			case s.fate == fateStranded:
				s.leaked = p.bytes
				s.note(w, "engine %d ends, and the driver keeps %s", pid, size(p.bytes))
				w.end(pid, -1)
			}
		}
	})
}

// wrong says what is wrong with a report, "" when nothing is.
func (s *schedule) wrong(r AccountReport, err error) string {
	d := r.Devices[0]
	clean := s.leaked == 0
	if (err == nil) != (d.Verdict == VerdictReturned) {
		return "the error and the verdict differ"
	}
	switch {
	case clean && d.Verdict == VerdictHeld:
		return "false blame"
	case clean && s.fate == fateUnused && (d.Verdict != VerdictReturned || d.Proof != proofUnused):
		return "an engine that uses no GPU is doubted"
	case clean && s.see == seesAll && d.Verdict != VerdictReturned:
		return "false alarm"
	case !clean && d.Verdict == VerdictReturned && d.Proof != proofTotal && (s.fate == fateKeeps || s.see == seesAll):
		return "false clear"
	case s.fate == fateKeeps && (s.see == seesAll || s.see == seesOwn):
		named := slices.ContainsFunc(d.Holders, func(p Process) bool {
			return slices.Contains(s.pids, p.PID) && p.Bytes == s.had+s.leaked
		})
		if d.Verdict != VerdictHeld || d.Bytes < s.leaked || !named ||
			!strings.Contains(err.Error(), fmt.Sprint(s.pids[0])) {
			return "a leak that is not attributed"
		}
	}
	return ""
}

// TestSchedules plays random lives of an engine among neighbours that come, go, grow, shrink and
// crash, under five kinds of drivers. ENGINETEST_LONG=1 plays 10,000. -v prints the confusion
// matrix.
func TestSchedules(t *testing.T) {
	n := 500
	switch {
	case os.Getenv("ENGINETEST_LONG") != "":
		n = 10_000
	case testing.Short():
		n = 100
	}
	matrix := map[string]int{}
	for seed := range n {
		s, r, err := play(t, uint64(seed))
		var failed *AccountError
		require.True(t, err == nil || errors.As(err, &failed), "%v", err)
		if why := s.wrong(r, err); why != "" {
			t.Fatalf("%s: %v\n%s\n%v", why, s, r.Line(), r)
		}
		d := r.Devices[0]
		matrix[fmt.Sprintf("%-16s %-23s %s %s", s.see, s.fate, d.Verdict, proofName(d.Proof))]++
	}
	var lines []string
	for k, n := range matrix {
		lines = append(lines, fmt.Sprintf("%s %d", k, n))
	}
	slices.Sort(lines)
	t.Logf("\n%s", strings.Join(lines, "\n"))
}

func proofName(p Proof) string {
	return map[Proof]string{
		proofListed: "(listed)", proofUnused: "(unused)", proofUnmapped: "(unmapped)",
		proofTotal: "(total)",
	}[p]
}
