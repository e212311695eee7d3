package corpus

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"time"
)

// Shapes from ordinary engine code that were once named badly.

type attention struct {
	heads [2]struct{ kv map[int][]*Thing }
}

type measured struct {
	name   string
	counts [4]int64
	body   []byte
}

var (
	layers      []attention // no descriptor of the slice's type is in the program
	counter     *int64
	subscribers = map[string]map[int]chan<- *Thing{}
	weightsLock sync.RWMutex
	cancelLate  context.Context
	stopLate    func() bool
)

//go:noinline
func blockedInReadLock(t *Thing) {
	weightsLock.RLock() // inlined: the function that waits is one of package sync
	defer weightsLock.RUnlock()
	t.Do()
}

//go:noinline
func blockedProducer(out chan<- *Thing, t *Thing) { out <- t }

var engines = []Case{
	{Name: "slice of structs of maps", Kind: "registry", Root: "corpus.layers", Via: "[2].heads[1].kv[9][1]",
		Plant: func(track func(any)) func() {
			t := thing("a")
			layers = make([]attention, 4)
			layers[2].heads[1].kv = map[int][]*Thing{9: {nil, t}}
			track(t)
			return func() { layers = nil }
		}},
	{Name: "pointer to a field", Kind: "global", Root: "corpus.counter", Via: ".counts[2]", Hint: "a pointer to a part",
		Plant: func(track func(any)) func() {
			m := &measured{name: "a", body: make([]byte, 64)}
			counter = &m.counts[2]
			track(m)
			return func() { counter = nil }
		}},
	{Name: "channel of one in a map of maps", Kind: "channel", Root: "corpus.subscribers", Via: "buffered[0]",
		Plant: func(track func(any)) func() {
			t, c := thing("a"), make(chan *Thing, 1)
			c <- t
			subscribers["room"] = map[int]chan<- *Thing{7: c}
			track(t)
			return func() { clear(subscribers) }
		}},
	{Name: "blocked in an inlined RLock", Kind: "goroutine", Root: "corpus.blockedInReadLock", Via: "local t",
		Plant: func(track func(any)) func() {
			t := thing("a")
			weightsLock.Lock()
			go blockedInReadLock(t)
			time.Sleep(time.Millisecond)
			track(t)
			return weightsLock.Unlock
		}},
	{Name: "producer that nobody listens to", Kind: "goroutine", Root: "corpus.blockedProducer", Via: "*corpus.Thing", Hint: "waits to send",
		Plant: func(track func(any)) func() {
			t, c := thing("a"), make(chan *Thing)
			go blockedProducer(c, t)
			time.Sleep(time.Millisecond)
			track(t)
			return func() { <-c }
		}},
	{Name: "context with a deadline that was not cancelled", Kind: "context", Root: "corpus.cancelLate", Via: "captured t", Hint: "call its cancel function",
		Plant: func(track func(any)) func() {
			t := thing("a")
			ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
			context.AfterFunc(ctx, func() { t.Name = "late" })
			cancelLate = ctx
			track(t)
			return func() { cancelLate = nil; cancel() }
		}},
	{Name: "pending timer whose Stop is kept", Kind: "timer", Root: "corpus.stopLate", Via: ".arg", Hint: "drop the timer too",
		Plant: func(track func(any)) func() {
			t := thing("a")
			stopLate = time.AfterFunc(time.Hour, func() { t.Name = "late" }).Stop
			track(t)
			return func() { stopLate(); stopLate = nil }
		}},
	{Name: "cleanup's argument that is a pointer", Kind: "cleanup", Root: "cleanup", Via: "argument  *corpus.Thing", Hint: "reaches the object",
		Plant: func(track func(any)) func() {
			o, t := &owner{name: "arg"}, thing("a")
			t.peer = o
			c := runtime.AddCleanup(o, func(t *Thing) { t.Do() }, t)
			track(o)
			return c.Stop
		}},
	{Name: "idle HTTP connection", Kind: "goroutine", Root: "http.(*persistConn)", Via: ".DialContext", Hint: "CloseIdleConnections",
		Plant: func(track func(any)) func() {
			t := thing("a")
			s := httptest.NewServer(http.NotFoundHandler())
			transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				t.Do()
				return (&net.Dialer{}).DialContext(ctx, network, addr)
			}}
			get(&http.Client{Transport: transport}, s.URL)
			track(t)
			idle := handle(transport)
			return func() { idle().CloseIdleConnections(); s.Close() }
		}},
}

func get(c *http.Client, url string) {
	resp, err := c.Get(url)
	if err != nil {
		panic(err)
	}
	io.Copy(io.Discard, resp.Body) //nolint:errcheck // an empty page
	resp.Body.Close()
}

var cleanEngines = []Clean{
	{"server and its connections, closed", func(track func(any)) {
		t := thing("a")
		track(t)
		s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Do() }))
		get(s.Client(), s.URL)
		s.Close()
	}},
	{"net.Pipe, closed", func(track func(any)) {
		t := thing("a")
		track(t)
		a, b := net.Pipe()
		go func() { io.Copy(io.Discard, a); t.Do() }() //nolint:errcheck // until b is closed
		b.Close()
		a.Close()
	}},
	{"ticker that was not stopped, dropped", func(track func(any)) {
		t := time.NewTicker(time.Millisecond)
		track(t)
		<-t.C
	}},
	{"method value of itself", func(track func(any)) {
		t := thing("a")
		track(t)
		t.peer = t.Do
	}},
}
