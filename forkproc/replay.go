package forkproc

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A replay repeats the child's tests in the parent while they run: each subtest through t.Run, its
// output through t.Output.
type replay struct {
	root    *node
	nodes   map[string]*node // by full name
	current string           // whose output comes now
	facts   *facts
	flat    bool // no subtests in the parent: a death is expected
	tests   []Test
	tail    []string

	mu    sync.Mutex
	moves []move
}

// A move is an artifact folder of the child, whose content goes to the folder of the parent's test.
type move struct{ from, to string }

func (r *replay) collect(from, to string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.moves = append(r.moves, move{from, to})
}

// A node is one test. The child's side fills events; the parent's test empties it.
type node struct {
	name   string
	parent *node
	events chan event
	closed bool // the child's test has ended
	paused bool
}

// The end of the output that an outcome keeps.
const (
	tailLines = 20
	tailWidth = 1000
)

func newReplay(name string, f *facts, flat bool) *replay {
	root := newNode(name, nil)
	return &replay{root: root, nodes: map[string]*node{name: root}, current: name, facts: f, flat: flat}
}

func newNode(name string, parent *node) *node {
	return &node{name: name, parent: parent, events: make(chan event, 64)}
}

// rename says where the files of the child's artifact folders will be.
func (r *replay) rename(line string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.moves {
		line = strings.ReplaceAll(line, m.from, m.to)
	}
	return line
}

// handle takes one event of the stream.
func (r *replay) handle(e event) {
	switch e.kind {
	case "text":
		r.text(e.text)
		return
	case "run":
		r.current = e.name
		r.start(e.name)
		return
	}
	if e.name == "" {
		r.facts.runOver = true
		return
	}
	r.current = e.name
	r.followPanic(e)
	n, known := r.nodes[e.name]
	if !known {
		return // a test above the one that we run
	}
	switch e.kind {
	case "pause", "cont":
		n.paused = e.kind == "pause"
	case "pass", "fail", "skip":
		r.end(n, e.kind)
	case "attr", "artifacts":
		r.open(e.name).send(e)
	}
}

func (r *replay) start(name string) {
	if !strings.HasPrefix(name, r.root.name+"/") || r.nodes[name] != nil {
		return
	}
	parent := r.open(name)
	n := newNode(name, parent)
	r.nodes[name] = n
	parent.send(event{kind: "run", name: name, node: n})
}

// followPanic remembers the innermost test of an unbroken chain of failures: a panic ends a test
// and all around it that way, before its text comes.
func (r *replay) followPanic(e event) {
	if e.kind != "fail" {
		r.facts.failed = ""
	} else if r.facts.failed == "" && strings.HasPrefix(e.name, r.root.name+"/") {
		r.facts.failed = strings.TrimPrefix(e.name, r.root.name+"/")
	}
}

// open is the innermost test around name that has not ended.
func (r *replay) open(name string) *node {
	for {
		if n := r.nodes[name]; n != nil && !n.closed {
			return n
		}
		i := strings.LastIndexByte(name, '/')
		if i < 0 {
			return r.root
		}
		name = name[:i]
	}
}

func (r *replay) end(n *node, verdict string) {
	if n == r.root {
		r.facts.verdict = verdict
		return // more output may come; the process is not over
	}
	if n.closed {
		return
	}
	r.tests = append(r.tests, Test{n.name, statusOf[verdict]})
	n.send(event{kind: verdict})
	n.closed = true
	close(n.events)
}

var statusOf = map[string]Status{
	"pass": StatusPassed, "fail": StatusFailed, "skip": StatusSkipped,
	"died": StatusExited,
}

// finish ends what the child left open, innermost first.
func (r *replay) finish() {
	var open []*node
	for _, n := range r.nodes {
		if n != r.root && !n.closed {
			open = append(open, n)
		}
	}
	slices.SortFunc(open, func(a, b *node) int { return len(b.name) - len(a.name) })
	for _, n := range open {
		r.end(n, "died")
	}
	close(r.root.events)
}

// running are the innermost tests that have not ended and do not wait for their turn.
func (r *replay) running() []string {
	inner := map[string]bool{}
	for name, n := range r.nodes {
		if !n.closed && !n.paused && n != r.root {
			inner[name] = true
		}
	}
	for name := range inner {
		for p := r.nodes[name].parent; p != nil; p = p.parent {
			delete(inner, p.name)
		}
	}
	var names []string
	for name := range inner {
		names = append(names, strings.TrimPrefix(name, r.root.name+"/"))
	}
	slices.Sort(names)
	return names
}

func (r *replay) text(line string) {
	r.facts.see(line)
	if isSummary(line) {
		return
	}
	line = strings.TrimPrefix(line, "    ") // t.Output adds it again
	line = strings.ReplaceAll(line, string(rune(marker)), "^V")
	if r.tail = append(r.tail, line[:min(len(line), tailWidth)]); len(r.tail) > tailLines {
		r.tail = r.tail[1:]
	}
	r.open(r.current).send(event{kind: "text", text: line})
}

// isSummary recognises what a test binary prints about its own run. In the parent it would be taken
// for the parent's.
func isSummary(line string) bool {
	return strings.HasPrefix(line, "coverage: ") && (strings.Contains(line, "% of statements") ||
		strings.Contains(line, "[no statements]"))
}

func (n *node) send(e event) { n.events <- e }

// play runs in the parent's test t and repeats the events of its node until they end.
func (r *replay) play(t *testing.T, n *node) {
	var below sync.WaitGroup
	out := t.Output()
	for e := range n.events {
		switch e.kind {
		case "text":
			fmt.Fprintln(out, r.rename(e.text))
		case "run":
			started := make(chan struct{})
			below.Go(func() { r.playBelow(t, e.node, sync.OnceFunc(func() { close(started) })) })
			<-started // siblings keep their order
		case "attr":
			t.Attr(e.key, e.value)
		case "artifacts":
			r.collect(e.text, t.ArtifactDir())
		case "fail":
			t.Fail()
		case "died":
			t.Errorf("forkproc: the child ended during this subtest")
		case "skip":
			below.Wait()
			t.SkipNow()
		}
	}
	below.Wait()
}

// playBelow repeats a subtest. Where package testing refuses to run it (-failfast, or a -run
// pattern that excludes it), its output and its failure go to the test above, so that nothing is
// lost.
func (r *replay) playBelow(above *testing.T, n *node, started func()) {
	ran := false
	if !r.flat {
		above.Run(strings.TrimPrefix(n.name, above.Name()+"/"), func(t *testing.T) {
			ran = true
			started()
			r.play(t, n)
		})
	}
	started()
	if !ran {
		r.playInto(above, n)
	}
}

func (r *replay) playInto(t *testing.T, n *node) {
	var below sync.WaitGroup
	for e := range n.events {
		switch e.kind {
		case "text":
			fmt.Fprintln(t.Output(), e.text)
		case "run":
			below.Go(func() { r.playInto(t, e.node) })
		case "fail", "died":
			if !r.flat {
				t.Errorf("forkproc: subtest %s failed in the child", n.name)
			}
		}
	}
	below.Wait()
}
