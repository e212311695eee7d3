package leakcheck

import (
	"regexp"
	"runtime"
	"sync"
	"time"
)

// kin follows the goroutines of a scope that don't carry its label: their labels were replaced, or
// a timer, a cleanup or an older goroutine started them. Its evidence is the runtime's "created by
// … in goroutine N", and where that says nothing, that nothing else ran meanwhile.
type kin struct {
	mu     sync.Mutex
	opened bool
	outer  string // marks of the scopes around the first Do
	shared bool   // another scope, or another test, ran at some time since
	before map[int64]bool
	mine   map[int64]string // goroutines of the scope, by the evidence
	others map[int64]bool   // new ones that were there when Do began, and are not the scope's
	first  map[int64]bool   // those without a label that were there when the verdict began
}

// inferred is the evidence that there is no other owner.
const inferred = "because nothing else ran meanwhile"

// most is how many goroutines are looked at one by one when a scope is entered and left; with more
// it would hold up what is tested.
const most = 2000

// open notes what runs when the calling goroutine enters the scope; close, what has come when it
// leaves.
func (k *kin) open(s *Scope, outer string) (closed func()) {
	if runtime.NumGoroutine() > most {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.shared = true
		return func() {}
	}
	c := takeCensus()
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.opened {
		k.opened, k.outer = true, outer
		k.before, k.mine, k.others = c.ids(), map[int64]string{}, map[int64]bool{}
		live.enter(s)
	}
	for id := range c.born {
		if !k.before[id] && k.mine[id] == "" && id != c.self {
			k.others[id] = true
		}
	}
	k.shared = k.shared || !c.alone(c.self)
	return func() { k.close(s, c) }
}

// close attributes what was started between then and now.
func (k *kin) close(s *Scope, then census) {
	if created() == then.created || runtime.NumGoroutine() > most {
		return
	}
	now := takeCensus()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.shared = k.shared || !now.alone(then.self, now.self)
	alone := !k.shared && !s.met.Load()
	for id := range now.born {
		if _, old := then.born[id]; old || k.mine[id] != "" || now.born[id].test {
			continue
		}
		switch root, dead := now.root(id, then); {
		case root == then.self:
			k.mine[id] = "by its creator"
		case k.mine[root] != "":
			k.mine[id] = "by its creator"
		case alone && (dead || then.has(root)):
			k.mine[id] = inferred
		}
	}
}

// left lists the goroutines that are the scope's although they don't carry its mark. Only such are
// counted that were there when it was called first since [kin.look]: what an older goroutine starts
// again and again, and ends again, is no leak.
func (k *kin) left(s *Scope) (out []goroutine) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.opened || runtime.NumGoroutine() > most {
		return nil
	}
	single := !k.shared && !s.met.Load()
	if !single && len(k.mine) == 0 { // then attribute has no evidence
		k.first = map[int64]bool{}
		return nil
	}
	now := takeCensus()
	alone := single && now.alone(now.self)
	why := map[int64]string{}
	for id, b := range now.born {
		if !b.test && !now.ancestor(id) && (k.first == nil || k.first[id]) {
			if w := k.attribute(id, now, alone); w != "" {
				why[id] = w
			}
		}
	}
	k.first = map[int64]bool{}
	if len(why) == 0 {
		return nil
	}
	for _, g := range stacks() {
		if g.why = why[g.id]; g.why == "" || marked(g.labels) || processWide(g.String()) ||
			allowed(finding([]goroutine{g}), s.cfg.allow) != nil {
			continue
		}
		k.first[g.id] = true
		out = append(out, g)
	}
	return out
}

// look begins a verdict.
func (k *kin) look() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.first = nil
}

// attribute says on which evidence a goroutine without label is the scope's; "" when it is not, or
// cannot be known.
func (k *kin) attribute(id int64, now census, alone bool) string {
	for {
		if why := k.mine[id]; why != "" {
			return why
		}
		b, alive := now.born[id]
		switch {
		case k.others[id] || k.before[id]:
			return ""
		case alive && b.parent != 0:
			id = b.parent
		case alone && (alive || systemGoroutine(id)): // a timer's, C's, a finalizer's or cleanup's
			return inferred
		default:
			return ""
		}
	}
}

// judgeable reports whether a new goroutine without label can only be the scope's.
func (k *kin) judgeable(s *Scope) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.opened || k.shared || s.met.Load() {
		return false
	}
	now := takeCensus()
	return now.alone(now.self)
}

// new reports whether a goroutine came after the scope was opened, and not when the test was
// outside of it.
func (k *kin) new(id int64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.before[id] && !k.others[id]
}

// marked reports whether a goroutine carries the label of any scope.
func marked(labels string) bool { return scopeLabel.MatchString(labels) }

// scopeLabel matches the key in `{"leakcheck": "/1/"}` and, from Go 1.27 on, `{leakcheck: /1/}`.
var scopeLabel = regexp.MustCompile(`[{ "]` + labelKey + `"?: `)

// over says that the scope's verdict is known: later ones run alone again.
func (k *kin) over(s *Scope) { live.leave(s) }

// The goroutines that run finalizers and cleanups are not listed by the runtime; what they start
// has them as creators.
var system struct {
	sync.Mutex
	ids map[int64]bool
}

// systemGoroutine reports whether a goroutine that is not listed is one of those.
func systemGoroutine(id int64) bool {
	system.Lock()
	defer system.Unlock()
	if system.ids == nil {
		system.ids = map[int64]bool{}
	}
	if system.ids[id] {
		return true
	}
	found := make(chan int64, 64)
	for range cap(found) / 2 {
		runtime.AddCleanup(new([64]int), func(int) { found <- self() }, 0)
		runtime.SetFinalizer(new([64]int), func(*[64]int) { found <- self() })
	}
	runtime.GC()
	for timeout := time.After(100 * time.Millisecond); ; {
		select {
		case id := <-found:
			system.ids[id] = true
		case <-timeout:
			return system.ids[id]
		}
		if len(found) == 0 && !pendingCleanups() {
			return system.ids[id]
		}
	}
}
