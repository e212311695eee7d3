package corpus

import (
	"context"
	"errors"
	"iter"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"
	"weak"
)

// Clean is a look-alike: it may look like a leak and is none.
type Clean struct {
	Name string
	Run  func(track func(v any))
}

// handle holds an object weakly, so that an undo function can reach it.
func handle[T any](p *T) func() *T {
	w := weak.Make(p)
	return w.Value
}

var (
	weakGlobal  weak.Pointer[Thing]
	addrGlobal  uintptr
	cleanPool   sync.Pool
	cleanHeader []byte
	names       []string
	mapped      = sync.OnceValue(func() []byte {
		b, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		if err != nil {
			panic(err)
		}
		return b
	})
)

// Cleans lists the look-alikes; besides, every planted leak is clean after its undo.
func Cleans() []Clean { return slices.Concat(cleans, cleanEngines) }

var cleans = []Clean{
	{"unreachable cycle", func(track func(any)) {
		a, b := thing("a"), thing("b")
		a.next, b.next = b, a
		track(a)
	}},
	{"cycle through a closure", func(track func(any)) {
		t := thing("a")
		t.peer = func() *Thing { return t }
		track(t)
	}},
	{"finalizer without a cycle", func(track func(any)) {
		t := thing("a")
		runtime.SetFinalizer(t, func(t *Thing) { t.Data = nil })
		track(t)
	}},
	{"chain of finalizers", func(track func(any)) {
		var t *Thing
		for range 4 {
			t = &Thing{next: t}
			runtime.SetFinalizer(t, func(*Thing) {})
		}
		track(t)
		track(t.next.next.next)
	}},
	{"cleanup that frees something else", func(track func(any)) {
		t := thing("a")
		runtime.AddCleanup(t, func([]byte) {}, t.Data)
		track(t)
	}},
	{"weak pointer", func(track func(any)) {
		t := thing("a")
		weakGlobal = weak.Make(t)
		track(t)
	}},
	{"address in a uintptr", func(track func(any)) {
		t := thing("a")
		addrGlobal = uintptr(unsafe.Pointer(t))
		track(t)
	}},
	{"address in memory outside the heap", func(track func(any)) {
		t := thing("a")
		*(*uintptr)(unsafe.Pointer(&mapped()[0])) = uintptr(unsafe.Pointer(t))
		track(t)
	}},
	{"put into a sync.Pool", func(track func(any)) {
		t := thing("a")
		track(t)
		cleanPool.Put(t)
	}},
	{"taken from a sync.Pool", func(track func(any)) {
		cleanPool.Put(thing("a"))
		if t, ok := cleanPool.Get().(*Thing); ok {
			track(t)
		}
	}},
	{"dead local", func(track func(any)) {
		t := thing("a")
		use(t)
		track(t)
	}},
	{"address of a local taken", func(track func(any)) {
		e := entry{"a", thing("a")}
		useEntry(&e)
		track(e.req)
	}},
	{"recovered panic", func(track func(any)) {
		defer func() { _ = recover() }()
		t := thing("a")
		track(t)
		panic(t)
	}},
	{"deferred call that has run", func(track func(any)) {
		t := thing("a")
		defer t.Do()
		track(t)
	}},
	{"goroutine that has ended", func(track func(any)) {
		t, done := thing("a"), make(chan bool)
		go func() { t.Do(); close(done) }()
		<-done
		track(t)
	}},
	{"goroutine that is about to end", func(track func(any)) {
		t := thing("a")
		go func() { time.Sleep(2 * time.Millisecond); t.Do() }()
		track(t)
	}},
	{"through an unbuffered channel", func(track func(any)) {
		c := make(chan *Thing)
		go func() { c <- thing("a") }()
		track(<-c)
	}},
	{"left in a channel that is dropped", func(track func(any)) {
		c := make(chan *Thing, 1)
		t := thing("a")
		c <- t
		track(t)
	}},
	{"goroutines of a worker pool", func(track func(any)) {
		var wg sync.WaitGroup
		jobs := make(chan *Thing)
		for range 4 {
			wg.Go(func() {
				for t := range jobs {
					t.Do()
				}
			})
		}
		for range 8 {
			t := thing("job")
			track(t)
			jobs <- t
		}
		close(jobs)
		wg.Wait()
	}},
	{"stopped timer that is dropped", func(track func(any)) {
		t := thing("a")
		time.AfterFunc(time.Hour, func() { t.Do() }).Stop()
		track(t)
	}},
	{"fired timer that is dropped", func(track func(any)) {
		t, fired := thing("a"), make(chan bool)
		time.AfterFunc(0, func() { t.Do(); close(fired) })
		<-fired
		track(t)
	}},
	{"timer about to fire", func(track func(any)) {
		t := thing("a")
		time.AfterFunc(2*time.Millisecond, func() { t.Do() })
		track(t)
	}},
	{"time.After in a select", func(track func(any)) {
		t := thing("a")
		select {
		case <-time.After(time.Microsecond):
		case <-make(chan bool):
		}
		track(t)
	}},
	{"cancelled context", func(track func(any)) {
		t := thing("a")
		ctx, cancel := context.WithCancel(context.WithValue(context.Background(), ctxKey{1}, t))
		cancel()
		<-ctx.Done()
		track(t)
	}},
	{"context that is dropped", func(track func(any)) {
		t := thing("a")
		ctx := context.WithValue(context.Background(), ctxKey{1}, t)
		_ = ctx.Value(ctxKey{1})
		track(t)
	}},
	{"stopped context.AfterFunc", func(track func(any)) {
		parent, cancel := context.WithCancel(context.Background())
		defer cancel()
		t := thing("a")
		stop := context.AfterFunc(parent, func() { t.Do() })
		stop()
		track(t)
	}},
	{"copy of a part", func(track func(any)) {
		b := make([]byte, 1<<16)
		cleanHeader = slices.Clone(b[100:116])
		track(b)
	}},
	{"deleted from a map", func(track func(any)) {
		byName["x"] = thing("x")
		track(byName["x"])
		delete(byName, "x")
	}},
	{"deleted from a slice", func(track func(any)) {
		truncated = []*Thing{thing("a"), thing("b")}
		track(truncated[0])
		truncated = slices.Delete(truncated, 0, 1)
		track(truncated[0])
		truncated = nil
	}},
	{"deleted from a sync.Map", func(track func(any)) {
		t := thing("a")
		smap.Store("clean", t)
		smap.Delete("clean")
		track(t)
	}},
	{"method expression as a key", func(track func(any)) {
		t := thing("a")
		fn := (*Thing).Do
		anyKeyed[unsafe.Pointer(*(**byte)(unsafe.Pointer(&fn)))] = fn(t)
		track(t)
		clear(anyKeyed)
	}},
	{"method value that was called", func(track func(any)) {
		t := thing("a")
		f := t.Do
		f()
		track(t)
	}},
	{"sync.OnceValue after its call", func(track func(any)) {
		t := thing("a")
		onceValue = sync.OnceValue(func() int { return t.Do() })
		onceValue()
		track(t)
		onceValue = nil
	}},
	{"error with the name only", func(track func(any)) {
		t := thing("a")
		lastErr = errors.New("request " + t.Name)
		track(t)
	}},
	{"field value copied out", func(track func(any)) {
		t := thing("a")
		names = append(names[:0], t.Name)
		track(t)
	}},
	{"finished iterator", func(track func(any)) {
		t := thing("a")
		next, stop := iter.Pull(func(yield func(*Thing) bool) { yield(t) })
		next()
		stop()
		track(t)
	}},
	{"range over a function", func(track func(any)) {
		t := thing("a")
		for v := range func(yield func(*Thing) bool) { yield(t) } {
			v.Do()
		}
		track(t)
	}},
	{"pinned and unpinned", func(track func(any)) {
		var p runtime.Pinner
		t := thing("a")
		p.Pin(t)
		p.Unpin()
		track(t)
	}},
	{"map of large elements, dropped", func(track func(any)) {
		m := map[int]fat{}
		t := thing("a")
		for i := range 100 {
			m[i] = fat{req: t}
		}
		track(t)
	}},
	{"printed", func(track func(any)) {
		t := thing("a")
		println2(t)
		track(t)
	}},
	{"generic value, dropped", func(track func(any)) {
		var c Cache[string, *Thing]
		t := thing("a")
		c.Put("a", t)
		track(t)
	}},
	{"buffer of many owners, dropped", func(track func(any)) {
		b := make([]byte, 1<<16)
		parts := [][]byte{b[:10], b[10:20], b[20:]}
		_ = parts
		track(b)
	}},
}

//go:noinline
func println2(v any) { names = append(names[:0], describe(v)) }

func describe(v any) string {
	if d, ok := v.(Doer); ok && d.Do() >= 0 {
		return "doer"
	}
	return "thing"
}
