package corpus

import (
	"iter"
	"runtime"
	"sync"
	"time"
)

// started runs f on a goroutine and waits until it blocks: f calls ready just before. The goroutine
// ends when stop is closed.
func started(f func(ready func(), stop chan bool)) (undo func()) {
	stop, ready, done := make(chan bool), make(chan bool), make(chan bool)
	go func() {
		defer close(done)
		f(func() { close(ready) }, stop)
	}()
	<-ready
	time.Sleep(time.Millisecond)
	return func() { close(stop); <-done }
}

//go:noinline
func use(t *Thing) int { return len(t.Data) }

//go:noinline
func useEntry(e *entry) int { return len(e.req.Data) }

type loop struct{ in chan int }

func (l *loop) run(f func(int) int, ended chan bool) {
	defer close(ended)
	for v := range l.in {
		f(v)
	}
}

//go:noinline
func blockedOnLocal(track func(any), ready func(), stop chan bool) {
	t := thing("local")
	track(t)
	ready()
	<-stop
	use(t)
}

//go:noinline
func blockedOnAddressTaken(track func(any), ready func(), stop chan bool) {
	var e entry
	e.req = thing("taken")
	track(e.req)
	useEntry(&e)
	ready()
	<-stop
	useEntry(&e)
}

//go:noinline
func blockedWithDefer(track func(any), ready func(), stop chan bool) {
	t := thing("defer")
	defer func() { use(t) }()
	track(t)
	ready()
	<-stop
}

//go:noinline
func blockedWithDefersInLoop(track func(any), ready func(), stop chan bool) {
	for i := range 3 {
		t := thing("defer")
		defer func() { use(t) }()
		if i == 1 {
			track(t)
		}
	}
	ready()
	<-stop
}

//go:noinline
func blockedWithArgument(t *Thing, ready func(), stop chan bool) {
	ready()
	<-stop
	use(t)
}

//go:noinline
func blockedInSend(out chan *Thing, track func(any), ready func(), stop chan bool) {
	t := thing("send")
	track(t)
	ready()
	select {
	case out <- t:
	case <-stop:
	}
}

//go:noinline
func blockedInSlice(track func(any), ready func(), stop chan bool) {
	ts := things(2)
	track(ts[1])
	ready()
	<-stop
	useAll(ts)
}

//go:noinline
func things(n int) (ts []*Thing) {
	for range n {
		ts = append(ts, thing("t"))
	}
	return ts
}

//go:noinline
func useAll(ts []*Thing) int { return len(ts) }

var goroutines = []Case{
	{Name: "closure of a loop that waits for work", Kind: "goroutine", Root: "corpus.(*loop).run", Via: "captured b", Hint: "waits on a channel",
		Plant: func(track func(any)) func() {
			b, l, ended := thing("g"), &loop{make(chan int)}, make(chan bool)
			go l.run(func(x int) int { return b.Do() + x }, ended)
			time.Sleep(time.Millisecond)
			track(b)
			return func() { close(l.in); <-ended }
		}},
	{Name: "local of a goroutine", Kind: "goroutine", Root: "corpus.blockedOnLocal", Via: "local t", Hint: "waits on a channel",
		Plant: func(track func(any)) func() {
			return started(func(ready func(), stop chan bool) { blockedOnLocal(track, ready, stop) })
		}},
	{Name: "address-taken local of a goroutine", Kind: "goroutine", Root: "corpus.blockedOnAddressTaken", Via: "e.req",
		Plant: func(track func(any)) func() {
			return started(func(ready func(), stop chan bool) { blockedOnAddressTaken(track, ready, stop) })
		}},
	{Name: "deferred call", Kind: "goroutine", Root: "corpus.blockedWithDefer", Via: "t", Hint: "a deferred call keeps",
		Plant: func(track func(any)) func() {
			return started(func(ready func(), stop chan bool) { blockedWithDefer(track, ready, stop) })
		}},
	{Name: "deferred calls in a loop", Kind: "goroutine", Root: "corpus.blockedWithDefersInLoop", Via: "deferred call  closure", Hint: "a deferred call keeps",
		Plant: func(track func(any)) func() {
			return started(func(ready func(), stop chan bool) { blockedWithDefersInLoop(track, ready, stop) })
		}},
	{Name: "argument of a goroutine's function", Kind: "goroutine", Root: "corpus.blockedWithArgument", Via: "*corpus.Thing",
		Plant: func(track func(any)) func() {
			return started(func(ready func(), stop chan bool) {
				t := thing("arg")
				track(t)
				blockedWithArgument(t, ready, stop)
			})
		}},
	{Name: "blocked in a select that would send it", Kind: "goroutine", Root: "corpus.blockedInSend", Via: "*corpus.Thing",
		Plant: func(track func(any)) func() {
			out := make(chan *Thing)
			return started(func(ready func(), stop chan bool) { blockedInSend(out, track, ready, stop) })
		}},
	{Name: "slice on a goroutine's stack", Kind: "goroutine", Root: "corpus.blockedInSlice", Via: "[1]",
		Plant: func(track func(any)) func() {
			return started(func(ready func(), stop chan bool) { blockedInSlice(track, ready, stop) })
		}},
	{Name: "blocked on a mutex", Kind: "goroutine", Root: "corpus.init", Via: "*corpus.Thing",
		Plant: func(track func(any)) func() {
			var mu sync.Mutex
			mu.Lock()
			done := make(chan bool)
			t := thing("mutex")
			go func() {
				mu.Lock()
				use(t)
				close(done)
			}()
			time.Sleep(time.Millisecond)
			track(t)
			return func() { mu.Unlock(); <-done }
		}},
	{Name: "blocked in WaitGroup.Wait", Kind: "goroutine", Root: "corpus.init", Via: "*corpus.Thing",
		Plant: func(track func(any)) func() {
			var wg sync.WaitGroup
			wg.Add(1)
			done := make(chan bool)
			t := thing("wg")
			go func() {
				wg.Wait()
				use(t)
				close(done)
			}()
			time.Sleep(time.Millisecond)
			track(t)
			return func() { wg.Done(); <-done }
		}},
	{Name: "waits for a sync.Cond", Kind: "goroutine", Root: "corpus.init", Via: "*corpus.Thing",
		Plant: func(track func(any)) func() {
			c := sync.NewCond(&sync.Mutex{})
			over, done := false, make(chan bool)
			t := thing("cond")
			go func() {
				c.L.Lock()
				for !over {
					c.Wait()
				}
				c.L.Unlock()
				use(t)
				close(done)
			}()
			time.Sleep(time.Millisecond)
			track(t)
			return func() { c.L.Lock(); over = true; c.L.Unlock(); c.Broadcast(); <-done }
		}},
	{Name: "sleeping", Kind: "goroutine", Root: "corpus.init", Via: "*corpus.Thing",
		Plant: func(track func(any)) func() {
			stop, done := make(chan bool), make(chan bool)
			t := thing("sleep")
			go func() {
				defer close(done)
				for {
					select {
					case <-stop:
						return
					default:
						time.Sleep(5 * time.Millisecond)
						runtime.KeepAlive(t)
					}
				}
			}()
			time.Sleep(time.Millisecond)
			track(t)
			return func() { close(stop); <-done }
		}},
	{Name: "iter.Pull that was not stopped", Kind: "goroutine", Root: "corpus.", Via: "*corpus.Thing", Hint: "call stop",
		Plant: func(track func(any)) func() {
			t := thing("iter")
			next, stop := iter.Pull(func(yield func(int) bool) {
				for i := range 10 {
					if !yield(i) {
						break
					}
				}
				use(t)
			})
			next()
			track(t)
			pulled = next
			return func() { stop(); pulled = nil }
		}},
}

var pulled func() (int, bool)
