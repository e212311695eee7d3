package heapdump

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// spreadSlowly is spread, one object and one pointer at a time.
func (s *Search) spreadSlowly() {
	x := &s.d.index
	for s.left > 0 {
		word, ok := s.queue.next()
		if !ok {
			return
		}
		r, slot := x.find(word)
		parent := int32(r.first+int(slot)) + 1
		for _, w := range r.pointers(slot) {
			to, k := x.find(w)
			if to == nil {
				continue
			}
			i := to.first + int(k)
			if p := s.parents[i]; p != 0 && p != wanted {
				continue
			}
			if s.used < s.PostponeTo && s.Postpone(i, uint64(to.words)*8) {
				s.held = append(s.held, held{w, parent})
				continue
			}
			s.enter(to, k, w, parent)
		}
	}
}

// web is a random graph: objects of many sizes, one of them with more pointers than are looked at
// together.
type web struct {
	small []*[3]*web
	next  *web
	wide  []*web
	_     [2]uint64
}

var webs []*web

func weave(r *rand.Rand, n int) (all []*web) {
	all = make([]*web, n)
	for i := range all {
		all[i] = &web{wide: make([]*web, r.IntN(40)), small: make([]*[3]*web, r.IntN(3))}
	}
	all[0].wide = make([]*web, 20*batch*16)
	pick := func() *web {
		if r.IntN(4) == 0 {
			return nil
		}
		return all[r.IntN(n)]
	}
	for _, w := range all {
		w.next = pick()
		for i := range w.wide {
			w.wide[i] = pick()
		}
		for i := range w.small {
			w.small[i] = &[3]*web{pick(), pick(), pick()}
		}
	}
	return all
}

// TestSpread: following many objects at once finds the same path to every object as one by one.
func TestSpread(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	webs = weave(r, 3000)
	runtime.GC()
	d, err := Take()
	require.NoError(t, err)
	defer d.Close()
	objects := make([]int, len(webs))
	for i, w := range webs {
		objects[i] = d.Find(address(w))
		require.GreaterOrEqual(t, objects[i], 0)
	}
	for round := range 8 {
		const classes = 3
		postponed := map[int]bool{}
		for range r.IntN(20) {
			postponed[objects[r.IntN(len(objects))]] = true
		}
		fast, slow := NewSearch(d, classes), NewSearch(d, classes)
		for _, s := range []*Search{fast, slow} {
			s.PostponeTo = round % classes
			s.Postpone = func(i int, _ uint64) bool { return postponed[i] }
		}
		for id := range 1 + r.IntN(6) {
			class, w := r.IntN(classes), webs[r.IntN(len(webs))]
			fast.Root(class, id, address(w))
			slow.Root(class, id, address(w))
		}
		targets := []int{objects[r.IntN(len(objects))], objects[r.IntN(len(objects))]}
		if round%2 == 0 { // to the very end: no root leads to the array of all
			targets = append(targets, d.Find(address(&webs[0])))
		}
		assert.Equal(t, slow.run(targets, classes, slow.spreadSlowly), fast.Run(targets, classes))
		for _, i := range append(objects, targets...) {
			want, wantRoot, wantOK := slow.Path(i)
			if round%2 != 0 && i != targets[0] && i != targets[1] {
				continue // one that stops at the last target has seen fewer of the others
			}
			got, root, ok := fast.Path(i)
			require.Equal(t, wantOK, ok)
			require.Equal(t, want, got)
			require.Equal(t, wantRoot, root)
		}
	}
	webs = nil
}
