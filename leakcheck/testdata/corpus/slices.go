package corpus

var (
	header     []byte
	headers    = map[int][]byte{}
	truncated  []*Thing
	queue      = make(chan any, 4)
	jobs       = make(chan func() int, 4)
	chanOfChan = make(chan chan *Thing, 1)
	grid       [][]*Thing
	tail       []*Thing
)

var slicesAndChannels = []Case{
	{Name: "part of a large array", Kind: "sub-slice", Root: "corpus.header", Via: "keeps its whole array", Hint: "slices.Clone",
		Plant: func(track func(any)) func() {
			b := make([]byte, 1<<20)
			header = b[1<<19 : 1<<19+16]
			track(b)
			return func() { header = nil }
		}},
	{Name: "parts of large arrays in a map", Kind: "sub-slice", Root: "corpus.headers", Via: "keeps its whole array", Hint: "slices.Clone",
		Plant: func(track func(any)) func() {
			for i := range 20 {
				b := make([]byte, 64<<10)
				headers[i] = b[:8:8]
				if i == 3 {
					track(b)
				}
			}
			return func() { clear(headers) }
		}},
	{Name: "element behind a slice's end", Kind: "sub-slice", Root: "corpus.truncated", Via: "beyond its length", Hint: "clear it",
		Plant: func(track func(any)) func() {
			truncated = []*Thing{thing("a"), thing("b"), thing("c")}
			track(truncated[2])
			truncated = truncated[:1]
			return func() { truncated = nil }
		}},
	{Name: "element before a slice's start", Kind: "sub-slice", Root: "corpus.tail", Via: "before the slice",
		Plant: func(track func(any)) func() {
			all := []*Thing{thing("a"), thing("b"), thing("c"), thing("d")}
			track(all[0])
			tail = all[2:]
			return func() { tail = nil }
		}},
	{Name: "slice of slices", Kind: "registry", Root: "corpus.grid", Via: "[2]",
		Plant: func(track func(any)) func() {
			for range 3 {
				grid = append(grid, []*Thing{thing("x"), thing("y")})
			}
			track(grid[2][1])
			return func() { grid = nil }
		}},
	{Name: "buffered channel", Kind: "channel", Root: "corpus.queue", Via: "buffered[",
		Plant: func(track func(any)) func() {
			e := &entry{"queued", thing("q")}
			queue <- e
			track(e.req)
			return func() { <-queue }
		}},
	{Name: "channel of closures", Kind: "channel", Root: "corpus.jobs", Via: "captured t",
		Plant: func(track func(any)) func() {
			t := thing("job")
			jobs <- func() int { return t.Do() }
			track(t)
			return func() { <-jobs }
		}},
	{Name: "channel in a channel", Kind: "channel", Root: "corpus.chanOfChan", Via: "chan *corpus.Thing",
		Plant: func(track func(any)) func() {
			inner := make(chan *Thing, 2)
			t := thing("inner")
			inner <- t
			chanOfChan <- inner
			track(t)
			return func() { <-chanOfChan }
		}},
}
