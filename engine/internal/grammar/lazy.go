package grammar

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// frame is a stack: where to go on when a rule ends. Equal stacks are one frame.
type frame struct {
	back   int32
	parent *frame
	id     uint64 // of this frame in its generation
	depth  int
}

// config is one way in which the text so far can be read.
type config struct {
	state int32
	stack *frame
}

// state is a set of configs: a state of the automaton made deterministic, as far as it has been
// used.
type state struct {
	generation int64
	configs    []config // those that take a byte
	accepts    bool
	next       []atomic.Pointer[state] // by class of bytes; deadState when nothing matches
	mask       atomic.Pointer[Mask]
}

var deadState = &state{}

// maxConfigs bounds the ways of reading a text at once: a grammar with more is too ambiguous.
// maxDepth bounds a stack: what would nest deeper does not match.
const (
	maxConfigs = 4096
	maxDepth   = 1024
)

// table holds the deterministic states of an automaton. It is forgotten when it is too large;
// states that are still in use are then entered anew.
type table struct {
	a      *automaton
	class  [256]uint8 // bytes that no edge tells apart
	sample []byte     // a byte of each class

	generation atomic.Int64

	mu     sync.Mutex
	states map[string]*state
	frames map[frameKey]*frame
	ids    uint64
	bytes  int64
	limit  int64
	first  *state
}

type frameKey struct {
	back   int32
	parent *frame
}

func newTable(a *automaton, limit int64) (*table, error) {
	t := &table{a: a, limit: limit}
	t.classify()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t, t.forget()
}

// classify finds bytes that no edge tells apart.
func (t *table) classify() {
	ids := map[string]uint8{}
	var seen []byteSet
	known := map[byteSet]bool{}
	for _, edges := range t.a.edges {
		for _, e := range edges {
			if e.rule == byByte && !known[e.set] {
				known[e.set] = true
				seen = append(seen, e.set)
			}
		}
	}
	key := make([]byte, (len(seen)+7)/8)
	for b := range 256 {
		clear(key)
		for i, s := range seen {
			if s.has(byte(b)) {
				key[i/8] |= 1 << (i % 8)
			}
		}
		id, ok := ids[string(key)]
		if !ok {
			id = uint8(len(ids))
			ids[string(key)] = id
			t.sample = append(t.sample, byte(b))
		}
		t.class[b] = id
	}
}

// forget drops every state but the first, which it makes anew.
func (t *table) forget() (err error) {
	t.generation.Add(1)
	t.states, t.frames, t.bytes = map[string]*state{}, map[frameKey]*frame{}, 0
	t.first, err = t.enter([]config{{state: t.a.start[0]}})
	return err
}

// start returns the first state.
func (t *table) start() *state {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.first
}

// grew counts memory that a state took later, and forgets all when there is too much.
func (t *table) grew(bytes int64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bytes += bytes; t.bytes <= t.limit {
		return nil
	}
	return t.forget()
}

// held is the memory that the states take.
func (t *table) held() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bytes
}

// step returns the state after a byte; deadState when none is.
func (t *table) step(s *state, b byte) (*state, error) {
	if n := s.next[t.class[b]].Load(); n != nil {
		return n, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stepSlow(s, t.class[b])
}

func (t *table) stepSlow(s *state, class uint8) (*state, error) {
	if n := s.next[class].Load(); n != nil {
		return n, nil
	}
	var after []config
	b := t.sample[class]
	for _, c := range s.configs {
		for _, e := range t.a.edges[c.state] {
			if e.rule == byByte && e.set.has(b) {
				after = append(after, config{e.to, c.stack})
			}
		}
	}
	n := deadState
	if len(after) > 0 {
		var err error
		if n, err = t.enter(after); err != nil {
			return nil, err
		}
	}
	s.next[class].Store(n)
	return n, nil
}

// renew returns a state of this generation.
func (t *table) renew(s *state) (*state, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.generation == t.generation.Load() {
		return s, nil
	}
	return t.intern(slices.Clone(s.configs), s.accepts)
}

// enter follows everything that takes no byte, and returns the state of where that leads.
func (t *table) enter(todo []config) (*state, error) {
	var (
		out     []config
		accepts bool
		seen    = map[config]bool{}
	)
	for i := range todo {
		todo[i].stack = t.cons(todo[i].stack)
		seen[todo[i]] = true
	}
	visit := func(c config) {
		if !seen[c] {
			seen[c] = true
			todo = append(todo, c)
		}
	}
	for len(todo) > 0 {
		c := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if len(seen) > maxConfigs {
			return nil, fmt.Errorf("grammar: too ambiguous: more than %d ways to read the text so far", maxConfigs)
		}
		if t.a.rule[c.state] >= 0 {
			if c.stack == nil {
				accepts = true
			} else {
				visit(config{c.stack.back, c.stack.parent})
			}
		}
		takes := false
		for _, e := range t.a.edges[c.state] {
			switch {
			case e.rule == byByte:
				takes = true
			case e.rule == free:
				visit(config{e.to, c.stack})
			case t.a.tail[e.to]:
				visit(config{t.a.start[e.rule], c.stack})
			default:
				if c.stack.levels() < maxDepth {
					visit(config{t.a.start[e.rule], t.push(e.to, c.stack)})
				}
			}
		}
		if takes {
			out = append(out, c)
		}
	}
	return t.intern(out, accepts)
}

func (f *frame) levels() int {
	if f == nil {
		return 0
	}
	return f.depth
}

func (t *table) push(back int32, parent *frame) *frame {
	k := frameKey{back, parent}
	f := t.frames[k]
	if f == nil {
		t.ids++
		f = &frame{back, parent, t.ids, parent.levels() + 1}
		t.frames[k] = f
		t.bytes += frameBytes
	}
	return f
}

// cons returns this generation's frame for a stack.
func (t *table) cons(f *frame) *frame {
	if f == nil || t.frames[frameKey{f.back, f.parent}] == f {
		return f
	}
	return t.push(f.back, t.cons(f.parent))
}

const (
	frameBytes = 96  // of a frame and its entry in the map
	stateBytes = 200 // of a state and its entry, without what it holds
)

// intern returns the one state for a set of configs.
func (t *table) intern(configs []config, accepts bool) (*state, error) {
	for i := range configs {
		configs[i].stack = t.cons(configs[i].stack)
	}
	slices.SortFunc(configs, func(a, b config) int {
		return cmp.Or(cmp.Compare(a.state, b.state), cmp.Compare(a.stack.number(), b.stack.number()))
	})
	key := make([]byte, 0, 12*len(configs)+1)
	for _, c := range configs {
		key = binary.LittleEndian.AppendUint32(key, uint32(c.state))
		key = binary.LittleEndian.AppendUint64(key, c.stack.number())
	}
	if accepts {
		key = append(key, 1)
	}
	if s := t.states[string(key)]; s != nil {
		return s, nil
	}
	s := &state{
		generation: t.generation.Load(), configs: slices.Clone(configs), accepts: accepts,
		next: make([]atomic.Pointer[state], len(t.sample)),
	}
	t.states[string(key)] = s
	t.bytes += stateBytes + int64(len(key)) + int64(16*len(configs)) + int64(8*len(t.sample))
	return s, nil
}

func (f *frame) number() uint64 {
	if f == nil {
		return 0
	}
	return f.id
}
