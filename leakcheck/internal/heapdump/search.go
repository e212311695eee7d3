package heapdump

// Search finds the shortest way from roots to objects. Roots come in classes: those of a class are
// all tried before the next class.
type Search struct {
	d *Dump
	// Postpone names objects that are not entered before the class PostponeTo: everything can be
	// reached through the scheduler's own structures, which explains nothing.
	Postpone   func(i int, size uint64) bool
	PostponeTo int

	roots   [][]uint64
	ids     [][]int32
	used    int     // classes searched
	parents []int32 // of each object: 0 unseen, n > 0 object n-1, n < 0 root -n-1
	held    []held
	queue   queue
	ahead   *spreader
	left    int
}

type held struct {
	word   uint32
	parent int32
}

// wanted marks a target in parents that has not been reached.
const wanted = -1 << 31

// NewSearch returns a search that has reached nothing.
func NewSearch(d *Dump, classes int) *Search {
	return &Search{
		d: d, roots: make([][]uint64, classes), ids: make([][]int32, classes), parents: make([]int32, d.index.slots),
	}
}

// Root adds a root that points to val; id is what Path returns for it.
func (s *Search) Root(class, id int, val uint64) {
	s.roots[class] = append(s.roots[class], val)
	s.ids[class] = append(s.ids[class], int32(id))
}

// Run searches the classes below limit that have not been searched, until every target is found. It
// returns the number of targets left.
func (s *Search) Run(targets []int, limit int) (left int) { return s.run(targets, limit, s.spread) }

//go:norace
func (s *Search) run(targets []int, limit int, spread func()) (left int) {
	s.left = 0
	for _, t := range targets {
		if s.parents[t] == 0 {
			s.parents[t] = wanted
			s.left++
		}
	}
	for ; s.used < limit && s.left > 0; s.used++ {
		s.queue.clear()
		if s.used == s.PostponeTo {
			for _, h := range s.held {
				s.reach(h.word, h.parent)
			}
			s.held = nil
		}
		for k, val := range s.roots[s.used] {
			if w, ok := s.d.index.word(val); ok {
				s.reach(w, -s.ids[s.used][k]-1)
			}
		}
		spread()
	}
	for _, t := range targets {
		if s.parents[t] == wanted {
			s.parents[t] = 0
		}
	}
	return s.left
}

// reach enters the object that holds a word, unless it has been reached.
//
//go:norace
func (s *Search) reach(word uint32, parent int32) {
	r, slot := s.d.index.find(word)
	if r == nil {
		return
	}
	if p := s.parents[r.first+int(slot)]; p == 0 || p == wanted {
		s.enter(r, slot, word, parent)
	}
}

//go:norace
func (s *Search) enter(r *run, slot, word uint32, parent int32) {
	i := r.first + int(slot)
	if s.parents[i] == wanted {
		s.left--
	}
	s.parents[i] = parent
	if len(r.edges) > 0 {
		s.queue.add(word)
	}
}

// Found reports whether the search has reached object i.
func (s *Search) Found(i int) bool { return s.parents[i] != 0 }

// Path returns the objects from the one that the root points to down to i, and the root's id; ok is
// false when i was not reached.
func (s *Search) Path(i int) (objects []int, root int, ok bool) {
	for n := 0; n <= len(s.parents); n++ {
		objects = append(objects, i)
		p := s.parents[i]
		if p == 0 {
			return nil, 0, false
		}
		if p < 0 {
			for l, r := 0, len(objects)-1; l < r; l, r = l+1, r-1 {
				objects[l], objects[r] = objects[r], objects[l]
			}
			return objects, int(-p) - 1, true
		}
		i = int(p) - 1
	}
	return nil, 0, false
}

// Orphans walks backwards from object i over objects that no root reached, nearest first: what
// keeps it hangs on one of them. next leads back to i.
//
//go:norace
func (s *Search) Orphans(i int) (up []int, next map[int]int) {
	referrers := map[int][]int{}
	s.d.Referrers(func(to int) bool { return s.parents[to] == 0 }, func(from, to int) {
		if s.parents[from] == 0 {
			referrers[to] = append(referrers[to], from)
		}
	})
	next = map[int]int{i: -1}
	up = []int{i}
	for h := 0; h < len(up); h++ {
		for _, j := range referrers[up[h]] {
			if _, ok := next[j]; !ok {
				next[j] = up[h]
				up = append(up, j)
			}
		}
	}
	return up, next
}

// Attach makes root id the parent of object top, and leads from there to the orphan along next.
func (s *Search) Attach(top, id int, next map[int]int) {
	s.parents[top] = int32(-id - 1)
	for j := top; next[j] >= 0; j = next[j] {
		s.parents[next[j]] = int32(j) + 1
	}
}

// Reach adds up what can be reached from object i, up to a limit of objects: an upper bound of what
// it keeps.
//
//go:norace
func (d *Dump) Reach(i, limit int) (bytes uint64, objects int) {
	x := &d.index
	seen := map[int]bool{i: true}
	for stack := []int{i}; len(stack) > 0 && objects < limit; objects++ {
		r, slot := x.of(stack[len(stack)-1])
		stack = stack[:len(stack)-1]
		bytes += uint64(r.words) * 8
		for _, w := range r.pointers(slot) {
			to, k := x.find(w)
			if to == nil {
				continue
			}
			if i := to.first + int(k); !seen[i] {
				seen[i] = true
				stack = append(stack, i)
			}
		}
	}
	return bytes, objects
}
