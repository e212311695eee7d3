package leakcheck

import (
	"context"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"
)

// labelKey is the pprof label that marks the goroutines of a scope. Its value lists the scopes
// around it, outermost first: "/3/17/".
const labelKey = "leakcheck"

var lastScope atomic.Int64

// Scope tells the goroutines of one fixture from all others. A goroutine belongs to it when it was
// started, at any depth, by code that ran in [Scope.Do]: goroutines inherit their creator's pprof
// labels. So it is right while other tests run in parallel.
//
// Goroutines whose labels were replaced are followed by who created them, and functions that a
// timer, a cleanup or an older goroutine started belong to it when nothing else ran at the same
// time. What it cannot see: work handed to goroutines that were there before.
type Scope struct {
	name string
	mark string // "/17/"
	cfg  config
	kin  kin
	met  atomic.Bool // another scope was open at the same time
}

// NewScope makes a scope; name is for its messages.
func NewScope(name string, opts ...Option) *Scope {
	return &Scope{name: name, mark: "/" + strconv.FormatInt(lastScope.Add(1), 10) + "/", cfg: configure(opts)}
}

// Do runs f; goroutines that are started while it runs belong to the scope (and to the scopes
// around this call). Labels of the caller are kept.
func (s *Scope) Do(f func()) {
	defer s.enter()()
	f()
}

// enter labels the calling goroutine until leave is called.
func (s *Scope) enter() (leave func()) {
	old := getLabels()
	kept, outer := labelsAt(old)
	ctx := pprof.WithLabels(context.Background(), pprof.Labels(append(kept, labelKey,
		strings.TrimSuffix(outer, "/")+s.mark)...))
	pprof.SetGoroutineLabels(ctx)
	close := s.kin.open(s, outer)
	return func() {
		close()
		setLabels(old)
	}
}

// The labels of the calling goroutine. runtime/pprof can set them, but neither read nor restore
// them; these two names are kept stable for the packages that need that (go.dev/issue/67401).
//
//go:linkname getLabels runtime/pprof.runtime_getProfLabel
func getLabels() unsafe.Pointer

//go:linkname setLabels runtime/pprof.runtime_setProfLabel
func setLabels(unsafe.Pointer)

// labelMap mirrors what runtime/pprof stores (Go 1.24 to 1.27); readable checks that before it is
// trusted.
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
