package heapdump

import "encoding/binary"

// Search finds the shortest way from roots to objects. Roots come in classes: those of a class are
// all tried before the next class.
type Search struct {
	d *Dump
	// Postpone names objects that are not entered before the class PostponeTo: everything can be
	// reached through the scheduler's own structures, which explains nothing.
	Postpone   func(i int) bool
	PostponeTo int

	roots [][]uint64
	ids   [][]int32
	used  int // classes searched
	held  []uint64
	queue []uint32
}

// NewSearch starts anew: marks of an earlier Search of the same dump are gone.
//
//go:norace
func NewSearch(d *Dump, classes int) *Search {
	for i := range d.nodes {
		d.nodes[i].parent = 0
	}
	return &Search{d: d, roots: make([][]uint64, classes), ids: make([][]int32, classes)}
}

// Root adds a root that points to val; id is what Path returns for it.
func (s *Search) Root(class, id int, val uint64) {
	s.roots[class] = append(s.roots[class], val)
	s.ids[class] = append(s.ids[class], int32(id))
}

// Run searches the classes below limit that have not been searched, until every target is found. It
// returns the number of targets left.
//
//go:norace
func (s *Search) Run(targets []int, limit int) (left int) {
	d := s.d
	want := map[int32]bool{}
	for _, t := range targets {
		if d.nodes[t].parent == 0 {
			want[int32(t)] = true
		}
	}
	// The mark of a target is in the node itself, not in a map that every edge would ask.
	const target = -1 << 31
	for t := range want {
		d.nodes[t].parent = target
	}
	left = len(want)
	reach := func(i int, parent int32) {
		if d.nodes[i].parent == target {
			left--
		}
		d.nodes[i].parent = parent
		if !d.nodes[i].plain {
			s.queue = append(s.queue, uint32(i))
		}
	}
	unseen := func(i int) bool { p := d.nodes[i].parent; return p == 0 || p == target }
	for ; s.used < limit && left > 0; s.used++ {
		s.queue = s.queue[:0]
		if s.used == s.PostponeTo {
			for _, h := range s.held {
				if i := int(uint32(h)); unseen(i) {
					reach(i, int32(h>>32)+1)
				}
			}
			s.held = nil
		}
		for k, val := range s.roots[s.used] {
			if i := d.Find(val); i >= 0 && unseen(i) {
				reach(i, -s.ids[s.used][k]-1)
			}
		}
		for h := 0; h < len(s.queue) && left > 0; h++ {
			from := s.queue[h]
			c := cursor{d.data, d.nodes[from].pos()}
			c.uint()
			b := c.bytes()
			for c.uint() != 0 {
				v := binary.LittleEndian.Uint64(b[c.uint():])
				if v == 0 {
					continue
				}
				i := d.Find(v)
				if i < 0 || !unseen(i) {
					continue
				}
				if s.used < s.PostponeTo && s.Postpone(i) {
					s.held = append(s.held, uint64(from)<<32|uint64(i))
					continue
				}
				reach(i, int32(from)+1)
			}
		}
	}
	for t := range want {
		if d.nodes[t].parent == target {
			d.nodes[t].parent = 0
		}
	}
	return left
}

// Found reports whether the search has reached object i.
func (s *Search) Found(i int) bool { return s.d.nodes[i].parent != 0 }

// Path returns the objects from the one that the root points to down to i, and the root's id; ok is
// false when i was not reached.
func (s *Search) Path(i int) (objects []int, root int, ok bool) {
	for n := 0; n <= len(s.d.nodes); n++ {
		objects = append(objects, i)
		p := s.d.nodes[i].parent
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
	d := s.d
	referrers := map[int][]int{}
	for j := range d.nodes {
		if d.nodes[j].parent != 0 {
			continue
		}
		d.Pointers(j, func(_, v uint64) {
			if k := d.Find(v); k >= 0 && k != j && d.nodes[k].parent == 0 {
				referrers[k] = append(referrers[k], j)
			}
		})
	}
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
	s.d.nodes[top].parent = int32(-id - 1)
	for j := top; next[j] >= 0; j = next[j] {
		s.d.nodes[next[j]].parent = int32(j) + 1
	}
}

// Reach adds up what can be reached from object i, up to a limit of objects: an upper bound of what
// it keeps.
//
//go:norace
func (d *Dump) Reach(i, limit int) (bytes uint64, objects int) {
	seen := map[int]bool{i: true}
	for stack := []int{i}; len(stack) > 0 && objects < limit; objects++ {
		j := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		bytes += d.Size(j)
		d.Pointers(j, func(_, v uint64) {
			if k := d.Find(v); k >= 0 && !seen[k] {
				seen[k] = true
				stack = append(stack, k)
			}
		})
	}
	return bytes, objects
}
