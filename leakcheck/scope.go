package leakcheck

import (
	"context"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// labelKey is the pprof label that marks the goroutines of a scope. Its value lists the scopes around it, outermost first: "/3/17/".
const labelKey = "leakcheck"

var lastScope atomic.Int64

// Scope tells the goroutines of one fixture from everybody else's. A goroutine belongs to it when it was started, at any depth, by code that
// ran in [Scope.Do]: goroutines inherit their creator's pprof labels. So it is right while other tests run in parallel.
//
// What does not inherit: functions that a timer, a finalizer or C calls, and work handed to goroutines that were there before.
type Scope struct {
	name string
	mark string // "/17/"
	cfg  config
}

// NewScope makes a scope; name is for its messages.
func NewScope(name string, opts ...Option) *Scope {
	return &Scope{name: name, mark: "/" + strconv.FormatInt(lastScope.Add(1), 10) + "/", cfg: configure(opts)}
}

// Do runs f; goroutines that are started meanwhile belong to the scope (and to the scopes around this call). Labels of the caller are kept.
func (s *Scope) Do(f func()) {
	defer s.enter()()
	f()
}

// enter labels the calling goroutine until leave is called.
func (s *Scope) enter() (leave func()) {
	old := getLabels()
	kept, outer := labelsAt(old)
	ctx := pprof.WithLabels(context.Background(), pprof.Labels(append(kept, labelKey, strings.TrimSuffix(outer, "/")+s.mark)...))
	pprof.SetGoroutineLabels(ctx)
	return func() { setLabels(old) }
}

// Gone waits until no goroutine of the scope is left (but the caller), and returns nil; otherwise a [*Error] with one finding per group of
// alike goroutines: what each waits for, since when, its stack and who started it.
func (s *Scope) Gone(ctx context.Context) error {
	if gone, waited := s.wait(ctx); !gone {
		return s.leftovers(waited)
	}
	return nil
}

// wait waits until no goroutine of the scope runs, the patience is spent, or the context ends.
func (s *Scope) wait(ctx context.Context) (gone bool, waited time.Duration) {
	start, pause := time.Now(), 50*time.Microsecond
	for s.running() > 0 {
		if time.Since(start) >= s.cfg.patience || ctx.Err() != nil {
			return false, time.Since(start)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, 20*time.Millisecond)
	}
	return true, time.Since(start)
}

// running counts the goroutines that carry the scope's mark, without the caller.
func (s *Scope) running() (n int) {
	old := getLabels()
	setLabels(nil)
	defer setLabels(old)
	var text strings.Builder
	pprof.Lookup("goroutine").WriteTo(&text, 1) //nolint:errcheck // a strings.Builder takes everything
	// "goroutine profile: total 9\n3 @ 0x… 0x…\n# labels: {"leakcheck":"/3/17/"}\n#\t0x…\tfunc+0x…\tfile:line\n…\n\n1 @ …"
	for record := range strings.SplitSeq(text.String(), "\n\n") {
		head, labels, ok := strings.Cut(record, "\n# labels: ")
		if !ok {
			continue
		}
		labels, stack, _ := strings.Cut(labels, "\n")
		if !strings.Contains(labels, `"`+labelKey+`":"`) || !strings.Contains(labels, s.mark) || processWide(stack) ||
			allowed(Finding{Signature: stack}, s.cfg.allow) {
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

// processWide recognises the goroutines that the standard library starts once and for all, at the first use.
func processWide(stack string) bool {
	return strings.Contains(stack, "os/signal.signal_recv") || strings.Contains(stack, "os/signal.loop") || strings.Contains(stack, "runtime.ensureSigM")
}

// The labels of the calling goroutine. runtime/pprof can set them, but neither read nor restore them; these two names are kept stable for
// the packages that need that (go.dev/issue/67401).
//
//go:linkname getLabels runtime/pprof.runtime_getProfLabel
func getLabels() unsafe.Pointer

//go:linkname setLabels runtime/pprof.runtime_setProfLabel
func setLabels(unsafe.Pointer)

// labelMap mirrors what runtime/pprof stores (Go 1.24 to 1.26); readable checks that before it is trusted.
type labelMap struct{ list []struct{ key, value string } }

var readable = sync.OnceValue(func() bool {
	old := getLabels()
	defer setLabels(old)
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("leakcheck-probe", "1")))
	words := (*[3]uintptr)(getLabels())
	if words == nil || words[1] != 1 || words[2] < 1 || words[2] > 16 {
		return false
	}
	l := (*labelMap)(getLabels()).list
	return len(l[0].key) == len("leakcheck-probe") && l[0].key == "leakcheck-probe" && l[0].value == "1"
})

// labelsAt splits labels into the outer scopes' mark and the rest, as pairs.
func labelsAt(p unsafe.Pointer) (others []string, mark string) {
	if p == nil || !readable() {
		return nil, ""
	}
	for _, l := range (*labelMap)(p).list {
		if l.key == labelKey {
			mark = l.value
		} else {
			others = append(others, l.key, l.value)
		}
	}
	return others, mark
}
