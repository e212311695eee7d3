package beside

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime/pprof"
	"sync"
	"time"
)

// engine is what the leaks keep.
type engine struct{ weights []byte }

func (e *engine) poll() { time.Sleep(time.Millisecond) }

// leakCase is one planted leak. Its goroutine, if it has one, runs or was started by a function of
// this package whose name starts with plant.
type leakCase struct {
	name      string
	goroutine bool
	plant     func(e *engine)
}

// pool is an older worker, there before the test.
var pool = make(chan func())

func startPool() {
	go func() {
		for job := range pool {
			go job()
		}
	}()
}

var (
	cache    = map[string]*engine{}
	hooks    []func()
	keepOpen []any
)

var cases = []leakCase{
	{"waits to receive", true, plantReceive},
	{"waits to send", true, plantSend},
	{"select without a case", true, plantSelect},
	{"waits for a mutex", true, plantMutex},
	{"waits for a WaitGroup", true, plantWaitGroup},
	{"waits for a Cond", true, plantCond},
	{"ticker that is never stopped", true, plantTicker},
	{"busy loop that sleeps", true, plantLoop},
	{"context that is never cancelled", true, plantContext},
	{"accepts connections", true, plantAccept},
	{"reads a pipe", true, plantPipe},
	{"reads an os.Pipe", true, plantOSPipe},
	{"idle HTTP connection", true, plantHTTP},
	{"started with other labels", true, plantRelabelled},
	{"started by a timer", true, plantTimer},
	{"started by an older worker", true, plantPool},
	{"kept in a map", false, func(e *engine) { cache["engine"] = e }},
	{"kept by a method value", false, func(e *engine) { hooks = append(hooks, e.poll) }},
	{"kept by a pending timer", false, func(e *engine) { time.AfterFunc(time.Hour, e.poll) }},
	{"kept by a part of its buffer", false, func(e *engine) { keepOpen = append(keepOpen, e) }},
}

func plantReceive(e *engine) { c := make(chan bool); go func() { <-c; e.poll() }() }
func plantSend(e *engine)    { c := make(chan *engine); go func() { c <- e }() }
func plantSelect(e *engine)  { go func() { e.poll(); select {} }() }

func plantMutex(e *engine) {
	var mu sync.Mutex
	mu.Lock()
	go func() { mu.Lock(); e.poll() }()
}

func plantWaitGroup(e *engine) {
	var wg sync.WaitGroup
	wg.Add(1)
	go func() { wg.Wait(); e.poll() }()
}

func plantCond(e *engine) {
	var mu sync.Mutex
	c := sync.NewCond(&mu)
	go func() { mu.Lock(); c.Wait(); e.poll() }()
}

func plantTicker(e *engine) {
	go func() {
		for range time.NewTicker(time.Millisecond).C {
			e.poll()
		}
	}()
}

func plantLoop(e *engine) {
	go func() {
		for {
			e.poll()
		}
	}()
}

func plantContext(e *engine) {
	ctx, cancel := context.WithCancel(context.Background())
	keepOpen = append(keepOpen, cancel)
	go func() { <-ctx.Done(); e.poll() }()
}

func plantAccept(e *engine) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	keepOpen = append(keepOpen, l)
	go func() { _, _ = l.Accept(); e.poll() }()
}

func plantPipe(e *engine) {
	r, w := io.Pipe()
	keepOpen = append(keepOpen, w)
	go func() { _, _ = io.Copy(io.Discard, r); e.poll() }()
}

func plantOSPipe(e *engine) {
	r, w, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	keepOpen = append(keepOpen, w)
	go func() { _, _ = io.Copy(io.Discard, r); e.poll() }()
}

func plantHTTP(*engine) {
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	keepOpen = append(keepOpen, s)
	r, err := (&http.Client{Transport: &http.Transport{}}).Get(s.URL)
	if err != nil {
		panic(err)
	}
	_ = r.Body.Close()
}

func plantRelabelled(e *engine) {
	c := make(chan bool)
	go pprof.Do(context.Background(), pprof.Labels("job", "1"), func(context.Context) { <-c; e.poll() })
}

func plantTimer(e *engine) {
	c := make(chan bool)
	time.AfterFunc(0, func() { <-c; e.poll() })
	time.Sleep(5 * time.Millisecond)
}

func plantPool(e *engine) {
	c := make(chan bool)
	pool <- func() { <-c; e.poll() }
	time.Sleep(5 * time.Millisecond)
}
