package harness

import (
	"context"
	"fmt"
	"iter"
	"runtime"
	"sync"

	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/verdict"
)

// Stream returns a request's tokens as they come. Breaking out of the loop, ending the test inside
// it, or Stop there, aborts the request; an error fails the test.
func (r *Runner) Stream(req llm.Request) iter.Seq[llm.Delta] {
	return func(yield func(llm.Delta) bool) {
		r.t.Helper()
		s := r.pull(req)
		defer s.end()
		for {
			d, err, ok := s.next()
			if err != nil {
				verdict.Record(r.t, verdictsOf(err)...)
				r.t.Fatalf("%s: stream: %v", r.pkg, err)
			}
			if !ok || !yield(d) {
				return
			}
		}
	}
}

// pulled is an engine's stream on a stack of its own, which end unwinds. A test that ends inside
// its loop (t.FailNow, t.Skip, a panic) runs its cleanups while the loop's stack is still there:
// the engine's frames on it would keep the engine, and look like a leak. So they would when Stop is
// called there.
type pulled struct {
	r *Runner

	mu     sync.Mutex
	ctx    context.Context
	cancel context.CancelFunc
	engine any
	pull   func() (llm.Delta, error, bool) // nil: ended
	stop   func()
}

func (r *Runner) pull(req llm.Request) *pulled {
	r.t.Helper()
	p := &pulled{r: r}
	s := capability[Streamer](r, "stream")
	p.engine = s
	p.ctx, p.cancel = r.working()
	r.fixture.scope.Do(func() { p.pull, p.stop = pull2(s.Stream(p.ctx, req)) })
	r.streams.Store(p, nil)
	return p
}

func (p *pulled) next() (d llm.Delta, err error, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pull == nil {
		return d, p.r.stopped(), false
	}
	type item struct {
		d   llm.Delta
		err error
		ok  bool
	}
	got := make(chan item, 1)
	pull := p.pull
	stuck := within(p.ctx, func() {
		p.r.fixture.scope.Do(func() {
			d, err, ok := pull()
			got <- item{d, err, ok}
		})
	})
	if stuck != nil {
		p.pull, p.stop = nil, func() {} // the engine is at work on it
		return d, stuck.of(p.ctx, fmt.Sprintf("%T", p.engine)), false
	}
	i := <-got
	return i.d, i.err, i.ok
}

// end ends the stream and forgets it: its functions reach the engine.
func (p *pulled) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endLocked()
}

func (p *pulled) endLocked() {
	if p.pull != nil {
		p.r.fixture.scope.Do(p.stop)
	}
	p.pull, p.stop, p.engine = nil, nil, nil
	p.cancel()
	p.r.streams.Delete(p)
}

// endStreams ends the streams whose loops are at work on a token. One that waits for the engine
// ends with it.
func (r *Runner) endStreams() {
	r.streams.Range(func(key, _ any) bool {
		if p := key.(*pulled); p.mu.TryLock() { //nolint:forcetypeassert // nothing else is stored
			p.endLocked()
			p.mu.Unlock()
		}
		return true
	})
}

// pull2 is [iter.Pull2] with a goroutine. With that one's coroutine, Go ends the process when the
// loop's body locks its thread, as users of CUDA do.
func pull2[K, V any](seq iter.Seq2[K, V]) (next func() (K, V, bool), stop func()) {
	type item struct {
		k      K
		v      V
		more   bool
		failed any  // seq panicked
		exited bool // seq ended its goroutine
	}
	items, wanted := make(chan item), make(chan bool)
	go func() {
		last := item{exited: true}
		defer func() {
			if v := recover(); v != nil {
				last = item{failed: v}
			}
			items <- last
		}()
		if <-wanted {
			seq(func(k K, v V) bool {
				items <- item{k: k, v: v, more: true}
				return <-wanted
			})
		}
		last = item{}
	}()
	ended := false
	ask := func(another bool) (i item) {
		if ended {
			return i
		}
		wanted <- another
		i = <-items
		ended = !i.more
		if i.failed != nil {
			panic(i.failed)
		}
		if i.exited {
			runtime.Goexit()
		}
		return i
	}
	return func() (K, V, bool) {
		i := ask(true)
		return i.k, i.v, i.more
	}, func() { ask(false) }
}
