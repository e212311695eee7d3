package leakcheck

import (
	"bytes"
	"runtime"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"sync"
	"weak"
)

// census is who runs at one moment, and who started whom.
type census struct {
	self    int64 // the goroutine that took it
	created uint64
	born    map[int64]birth
}

// birth is what a stack dump says of one goroutine's origin.
type birth struct {
	parent int64 // 0 when it was started by a timer or by C
	test   bool  // runs a test function of the testing package
	busy   bool  // of those: neither paused in t.Parallel nor waiting for a subtest
	phase  bool  // of those: waits for parallel subtests
}

// takeCensus reads a dump of all stacks. It stops the world for some microseconds a goroutine.
func takeCensus() census {
	c := census{created: created(), born: map[int64]birth{}}
	for i, block := range bytes.Split(allStacks(), []byte("\n\n")) {
		id, b := parseBirth(block)
		if id == 0 {
			continue
		}
		if i == 0 {
			c.self = id
		}
		c.born[id] = b
	}
	return c
}

func allStacks() []byte {
	for size := 64 << 10; ; size *= 2 {
		buf := make([]byte, size)
		if n := runtime.Stack(buf, true); n < size {
			return buf[:n]
		}
	}
}

// parseBirth reads one block of a dump: "goroutine 20 [chan receive]:\n…created by f in goroutine
// 7\n\t…".
func parseBirth(block []byte) (id int64, b birth) {
	head, rest, _ := bytes.Cut(block, []byte("\n"))
	id = goroutineID(head)
	if i := bytes.LastIndex(rest, []byte("created by ")); i >= 0 {
		line, _, _ := bytes.Cut(rest[i:], []byte("\n"))
		if j := bytes.LastIndex(line, []byte(" in goroutine ")); j >= 0 {
			b.parent, _ = strconv.ParseInt(string(line[j+len(" in goroutine "):]), 10, 64)
		}
	}
	frame := func(fn string) bool {
		return bytes.Contains(rest, []byte("\n"+fn+"(")) || bytes.HasPrefix(rest, []byte(fn+"("))
	}
	if b.test = frame("testing.tRunner"); b.test {
		b.phase = frame("testing.tRunner.func1") && !frame("testing.(*common).runCleanup") &&
			bytes.Contains(head, []byte("[chan receive"))
		b.busy = !b.phase && !frame("testing.(*T).Parallel") && !frame("testing.(*testState).waitParallel") &&
			!frame("testing.(*T).Run") &&
			busyFrame(rest)
	}
	return id, b
}

// busyFrame reports whether there is a frame of a test's own: a test that is over is listed until
// its goroutine has ended.
func busyFrame(frames []byte) bool {
	for line := range bytes.Lines(frames) {
		if bytes.HasPrefix(line, []byte("created by ")) {
			return false
		}
		own := !bytes.HasPrefix(line, []byte("\t")) && !bytes.HasPrefix(line, []byte("panic(")) &&
			bytes.ContainsRune(line, '(')
		for _, pkg := range []string{"testing.", "runtime.", "runtime/", "internal/", "sync.", "time."} {
			own = own && !bytes.HasPrefix(line, []byte(pkg))
		}
		if own {
			return true
		}
	}
	return false
}

// goroutineID reads "goroutine 20 …".
func goroutineID(head []byte) int64 {
	rest, ok := bytes.CutPrefix(head, []byte("goroutine "))
	number, _, _ := bytes.Cut(rest, []byte(" "))
	id, err := strconv.ParseInt(string(number), 10, 64)
	if !ok || err != nil {
		return 0
	}
	return id
}

// self is the number of the calling goroutine.
func self() int64 {
	buf := make([]byte, 64)
	return goroutineID(buf[:runtime.Stack(buf, false)])
}

// created counts the goroutines that were ever started.
func created() uint64 {
	s := []metrics.Sample{{Name: "/sched/goroutines-created:goroutines"}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return s[0].Value.Uint64()
}

func (c census) has(id int64) bool { _, ok := c.born[id]; return ok }

func (c census) ids() map[int64]bool {
	m := make(map[int64]bool, len(c.born))
	for id := range c.born {
		m[id] = true
	}
	return m
}

// root follows the creators of a goroutine to the first that was there then; dead says that the
// trail ends before, at one that has ended or at a timer.
func (c census) root(id int64, then census) (root int64, dead bool) {
	for {
		b, alive := c.born[id]
		switch {
		case then.has(id):
			return id, false
		case !alive || b.parent == 0:
			return id, true
		}
		id = b.parent
	}
}

// ancestor reports whether a goroutine is the caller, or started it, at any depth.
func (c census) ancestor(id int64) bool {
	for a, ok := c.self, true; ok && a != 0; {
		if a == id {
			return true
		}
		var b birth
		b, ok = c.born[a]
		a = b.parent
	}
	return false
}

// alone reports whether tests run, and none but those of the given goroutines, and of who started
// them.
func (c census) alone(those ...int64) bool {
	tests := false
	for id, b := range c.born {
		tests = tests || b.test
		if b.phase || b.busy && !slices.Contains(those, id) && !c.ancestor(id) {
			return false
		}
	}
	return tests
}

// String is the functions on the stack, as text.
func (g *goroutine) String() string {
	var b strings.Builder
	for _, f := range g.frames {
		b.WriteString(f.fn + "\n")
	}
	return b.String() + g.creator.fn
}

// scopes are those that are open: entered, and their verdict not known.
type scopes struct {
	mu   sync.Mutex
	open []weak.Pointer[Scope]
}

var live scopes

// enter adds a scope. Two that are open at once, neither around the other, cannot tell whose a
// goroutine is that has no label.
func (l *scopes) enter(s *Scope) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = slices.DeleteFunc(l.open, func(w weak.Pointer[Scope]) bool {
		o := w.Value()
		if o != nil && !strings.Contains(s.kin.outer, o.mark) {
			o.met.Store(true)
			s.met.Store(true)
		}
		return o == nil
	})
	l.open = append(l.open, weak.Make(s))
}

func (l *scopes) leave(s *Scope) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = slices.DeleteFunc(l.open, func(w weak.Pointer[Scope]) bool { o := w.Value(); return o == nil || o == s })
}

// OtherTests returns how many tests run now beside that of the calling goroutine. What they open
// belongs to this process too, and can't be told from what this test opens.
func OtherTests() (n int) {
	c := takeCensus()
	for id, b := range c.born {
		if b.busy && id != c.self && !c.ancestor(id) {
			n++
		}
	}
	return n
}
