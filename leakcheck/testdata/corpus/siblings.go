package corpus

// halves is one allocation with two things that callers take for objects of their own.
type halves struct {
	left, right Thing
	name        string
}

var (
	half   *Thing
	both   *halves
	slab   []Thing
	pooled []*Thing
)

//go:noinline
func newHalves() *halves { return &halves{left: Thing{Name: "left"}, right: Thing{Name: "right"}} }

//go:noinline
func newSlab() []Thing { return make([]Thing, 4) }

var siblings = []Case{
	{Name: "sibling in a struct", Kind: "sibling", Root: "corpus.half", Via: "+64 bytes in the same allocation", Hint: "a pointer to a part",
		Plant: func(track func(any)) func() {
			h := newHalves()
			half = &h.left
			track(&h.right)
			return func() { half = nil }
		}},
	{Name: "sibling in front", Kind: "sibling", Root: "corpus.half", Via: "-64 bytes in the same allocation", Hint: "a pointer to a part",
		Plant: func(track func(any)) func() {
			h := newHalves()
			half = &h.right
			track(&h.left)
			return func() { half = nil }
		}},
	{Name: "sibling in a slab", Kind: "sibling", Root: "corpus.pooled", Via: "+128 bytes in the same allocation", Hint: "a pointer to a part",
		Plant: func(track func(any)) func() {
			s := newSlab()
			pooled = append(pooled, &s[1])
			track(&s[3])
			return func() { pooled = nil }
		}},
	{Name: "element of a slab", Kind: "sibling", Root: "corpus.slab", Via: "[2]  *corpus.Thing",
		Plant: func(track func(any)) func() {
			s := newSlab()
			slab = s
			track(&s[2])
			return func() { slab = nil }
		}},
	{Name: "embedded half of what is kept", Kind: "sibling", Root: "corpus.both", Via: ".right  *corpus.Thing",
		Plant: func(track func(any)) func() {
			h := newHalves()
			both = h
			track(&h.right)
			return func() { both = nil }
		}},
}
