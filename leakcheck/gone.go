package leakcheck

import (
	"context"
	"runtime"
	"runtime/metrics"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/enginetest/enginetest/internal/backoff"
)

// Gone waits until no goroutine of the scope is left (but the caller), and returns nil; otherwise a
// [*Error] with one finding per group of alike goroutines: what each waits for, since when, its
// stack and who started it. Before it calls one leaked it collects garbage, so that goroutines that
// a finalizer or cleanup stops can end.
func (s *Scope) Gone(ctx context.Context) error {
	gone, waited := s.wait(ctx)
	defer s.kin.over(s)
	if !gone {
		return s.leftovers(waited)
	}
	return s.certainLeaks()
}

// fewest is how often garbage is collected before a verdict: once more than a chain of two
// finalizers needs.
const fewest = 3

// wait waits until no goroutine of the scope runs, the patience is spent, or the context ends.
func (s *Scope) wait(ctx context.Context) (gone bool, waited time.Duration) {
	watch, looks := startWatch(), backoff.New(50*time.Microsecond, 20*time.Millisecond)
	collected, next := 0, 10*time.Millisecond
	s.kin.look()
	for s.running() > 0 && !s.accepted() || len(s.kin.left(s)) > 0 {
		waited = time.Since(watch.start)
		end := watch.spent() >= s.cfg.patience || ctx.Err() != nil
		switch {
		case end && collected >= fewest:
			return false, waited
		case end || waited >= next:
			collectGarbage()
			collected, next = collected+1, 5*next
			continue
		}
		_ = looks.Wait(ctx) // the context is looked at above
	}
	return true, time.Since(watch.start)
}

// accepted reports whether an Allow covers each goroutine that carries the scope's mark.
func (s *Scope) accepted() bool {
	if !slices.ContainsFunc(s.cfg.allow, func(a *allowance) bool {
		return strings.HasPrefix(a.pattern, string(KindGoroutine))
	}) {
		return false
	}
	old := getLabels()
	setLabels(nil)
	defer setLabels(old)
	return !slices.ContainsFunc(stacks(), func(g goroutine) bool {
		return marked(g.labels) && strings.Contains(g.labels, s.mark) && !processWide(g.String()) &&
			allowed(finding([]goroutine{g}), s.cfg.allow) == nil
	})
}

// collectGarbage collects garbage, and waits a moment for the finalizers and cleanups of what is
// gone, and for what they stop.
func collectGarbage() {
	runtime.GC()
	for wait := time.Millisecond; wait < 64*time.Millisecond && pendingCleanups(); wait *= 2 {
		time.Sleep(wait)
	}
	time.Sleep(time.Millisecond)
}

// pendingCleanups reports whether functions of collected objects have yet to run.
func pendingCleanups() bool {
	s := []metrics.Sample{
		{Name: "/gc/finalizers/queued:finalizers"},
		{Name: "/gc/finalizers/executed:finalizers"},
		{Name: "/gc/cleanups/queued:cleanups"},
		{Name: "/gc/cleanups/executed:cleanups"},
	}
	metrics.Read(s)
	for i := 0; i < len(s); i += 2 {
		queued, executed := s[i].Value, s[i+1].Value
		if queued.Kind() == metrics.KindUint64 && executed.Kind() == metrics.KindUint64 &&
			queued.Uint64() > executed.Uint64() {
			return true
		}
	}
	return false
}

// running counts the goroutines that carry the scope's mark, without the caller.
func (s *Scope) running() (n int) {
	old := getLabels()
	setLabels(nil)
	defer setLabels(old)
	var text strings.Builder
	pprof.Lookup("goroutine").WriteTo(&text, 1) //nolint:errcheck // a strings.Builder takes everything
	// "goroutine profile: total 9\n3 @ 0x… 0x…\n# labels:
	// {"leakcheck":"/3/17/"}\n#\t0x…\tfunc+0x…\tfile:line\n…\n\n1 @ …"
	for record := range strings.SplitSeq(text.String(), "\n\n") {
		head, labels, ok := strings.Cut(record, "\n# labels: ")
		if !ok {
			continue
		}
		labels, stack, _ := strings.Cut(labels, "\n")
		if !strings.Contains(labels, `"`+labelKey+`":"`) || !strings.Contains(labels, s.mark) || processWide(stack) {
			continue
		}
		count, _, _ := strings.Cut(head[strings.LastIndexByte(head, '\n')+1:], " @")
		k, err := strconv.Atoi(count)
		if err != nil {
			k = 1 // a format that is not known still shows one
		}
		n += k
	}
	return n
}

// processWide recognises the goroutines that the standard library starts once and for all, at the
// first use.
func processWide(stack string) bool {
	for _, fn := range []string{
		"os/signal.signal_recv", "os/signal.loop", "runtime.ensureSigM", "runtime.ReadTrace",
		"runtime/pprof.profileWriter",
	} {
		if strings.Contains(stack, fn) {
			return true
		}
	}
	return false
}
