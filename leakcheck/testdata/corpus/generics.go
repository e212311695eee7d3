package corpus

// Cache is a generic least-recently-used cache.
type Cache[K comparable, V any] struct {
	byKey map[K]*node[K, V]
	head  *node[K, V]
}

type node[K comparable, V any] struct {
	key        K
	val        V
	next, prev *node[K, V]
}

// Put stores a value.
func (c *Cache[K, V]) Put(k K, v V) {
	n := &node[K, V]{key: k, val: v, next: c.head}
	if c.head != nil {
		c.head.prev = n
	}
	c.head = n
	if c.byKey == nil {
		c.byKey = map[K]*node[K, V]{}
	}
	c.byKey[k] = n
}

// Get is a method to make method values of.
func (c *Cache[K, V]) Get(k K) V { return c.byKey[k].val }

type set[T comparable] map[T]struct{}

type option[T any] struct {
	value T
	valid bool
}

var (
	genericCache Cache[string, *Thing]
	genericPtr   *Cache[int, option[*Thing]]
	genericSet   = set[*Thing]{}
	genericFn    func(string) *Thing
)

//go:noinline
func capture[T any](v T) func() T { return func() T { return v } }

var captured func() *Thing

var generics = []Case{
	{Name: "generic cache", Kind: "generics", Root: "corpus.genericCache", Via: ".val",
		Plant: func(track func(any)) func() {
			genericCache.Put("a", thing("a"))
			t := thing("b")
			genericCache.Put("b", t)
			track(t)
			return func() { genericCache = Cache[string, *Thing]{} }
		}},
	{Name: "generic cache of a generic struct", Kind: "generics", Root: "corpus.genericPtr", Via: ".val.value",
		Plant: func(track func(any)) func() {
			genericPtr = &Cache[int, option[*Thing]]{}
			t := thing("o")
			for i := range 5 {
				genericPtr.Put(i, option[*Thing]{})
			}
			genericPtr.Put(9, option[*Thing]{t, true})
			track(t)
			return func() { genericPtr = nil }
		}},
	{Name: "generic set", Kind: "generics", Root: "corpus.genericSet", Via: "key",
		Plant: func(track func(any)) func() {
			t := thing("s")
			genericSet[t] = struct{}{}
			track(t)
			return func() { clear(genericSet) }
		}},
	{Name: "method value of a generic type", Kind: "generics", Root: "corpus.genericFn", Via: ".val", // through the receiver
		Plant: func(track func(any)) func() {
			c := &Cache[string, *Thing]{}
			t := thing("m")
			c.Put("x", t)
			genericFn = c.Get
			track(t)
			return func() { genericFn = nil }
		}},
	{Name: "closure of a generic function", Kind: "generics", Root: "corpus.captured", Via: "captured",
		Plant: func(track func(any)) func() {
			t := thing("g")
			captured = capture(t)
			track(t)
			return func() { captured = nil }
		}},
}
