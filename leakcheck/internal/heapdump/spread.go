package heapdump

// batch is how many objects are followed at once. Nearly every step of a search waits for memory:
// the steps of one object depend on each other, those of different objects don't, so the processor
// can wait for many at a time when each stage is a loop of its own.
const batch = 64

// spreader is what spread needs for one batch. An object with more pointers than steps is followed in
// parts.
type spreader struct {
	parents [batch]int32
	edges   [batch][]uint32 // those that are left
	steps   [16 * batch]step
}

// step is one pointer that is about to be followed.
type step struct {
	word   uint32
	slot   uint32
	run    *run
	parent int32
}

// spread follows the pointers of what has been reached, the nearest first: in the same order as if
// it did so one by one.
//
//go:norace
func (s *Search) spread() {
	if s.ahead == nil {
		s.ahead = new(spreader)
	}
	for s.left > 0 {
		n := s.take()
		if n == 0 {
			return
		}
		for more := true; more; {
			var next []step
			next, more = s.look(n)
			for k := range next {
				s.follow(&next[k])
			}
		}
	}
}

// take finds the next objects of the queue and their pointers.
//
//go:norace
func (s *Search) take() (n int) {
	x, a := &s.d.index, s.ahead
	for ; n < batch; n++ {
		word, ok := s.queue.next()
		if !ok {
			break
		}
		r, slot := x.find(word)
		a.parents[n] = int32(r.first+int(slot)) + 1
		a.edges[n] = r.pointers(slot)
	}
	return n
}

// look finds the objects that pointers of the batch lead to and that have not been reached yet; more
// says that pointers are left.
//
//go:norace
func (s *Search) look(n int) (next []step, more bool) {
	x, a := &s.d.index, s.ahead
	next = a.steps[:0]
	for k := range n {
		edges := a.edges[k][:min(len(a.edges[k]), len(a.steps)-len(next))]
		a.edges[k] = a.edges[k][len(edges):]
		more = more || len(a.edges[k]) > 0
		for _, w := range edges {
			if p := w / pageWords; p < uint32(len(x.pages)) && x.pages[p] != 0 {
				next = append(next, step{word: w, run: &x.runs[x.pages[p]-1], parent: a.parents[k]})
			}
		}
	}
	left := 0
	for k := range next {
		t := &next[k]
		if t.word < t.run.word {
			continue
		}
		t.slot = (t.word - t.run.word) / t.run.words
		if t.slot >= uint32(len(t.run.places)) || t.run.places[t.slot] == absent {
			continue
		}
		if p := s.parents[t.run.first+int(t.slot)]; p == 0 || p == wanted {
			next[left] = *t
			left++
		}
	}
	return next[:left], more
}

// follow enters the object that a pointer leads to, unless another of the same batch has.
//
//go:norace
func (s *Search) follow(t *step) {
	i := t.run.first + int(t.slot)
	if p := s.parents[i]; p != 0 && p != wanted {
		return
	}
	if s.used < s.PostponeTo && s.Postpone(i, uint64(t.run.words)*8) {
		s.held = append(s.held, held{t.word, t.parent})
		return
	}
	s.enter(t.run, t.slot, t.word, t.parent)
}
