package lookalikes

import (
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"os/exec"
	"os/signal"
	"runtime/pprof"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unique"
	"weak"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"
)

func TestErrgroup(t *testing.T) {
	e := guarded(t)
	g, ctx := errgroup.WithContext(t.Context())
	for range 4 {
		g.Go(func() error { <-ctx.Done(); _ = e.generate("x"); return ctx.Err() })
	}
	g.Go(func() error { return errors.New("first") })
	if g.Wait() == nil {
		t.Fatal("no error")
	}
}

func TestErrgroupLimit(t *testing.T) {
	e := guarded(t)
	var g errgroup.Group
	g.SetLimit(2)
	for range 8 {
		g.Go(func() error { _ = e.generate("x"); return nil })
	}
	ok(t, g.Wait())
}

func TestSemaphore(t *testing.T) {
	e := guarded(t)
	s := semaphore.NewWeighted(1)
	ok(t, s.Acquire(t.Context(), 1))
	ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), e, e), time.Millisecond)
	defer cancel()
	if s.Acquire(ctx, 1) == nil {
		t.Fatal("two at a time")
	}
	s.Release(1)
}

func TestSingleflight(t *testing.T) {
	e := guarded(t)
	var g singleflight.Group
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { _, _, _ = g.Do("x", func() (any, error) { return e, nil }) })
	}
	wg.Wait()
	<-g.DoChan("y", func() (any, error) { return e, nil })
}

func TestRateLimiter(t *testing.T) {
	e := guarded(t)
	l := rate.NewLimiter(rate.Every(time.Millisecond), 1)
	for range 3 {
		ok(t, l.Wait(context.WithValue(t.Context(), e, e)))
	}
}

func TestTickerStopped(t *testing.T) {
	e := guarded(t)
	tick, stop := time.NewTicker(time.Millisecond), make(chan bool)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-tick.C:
				_ = e.generate("tick")
			case <-stop:
				return
			}
		}
	})
	time.Sleep(2 * time.Millisecond)
	tick.Stop()
	close(stop)
	wg.Wait()
}

func TestAfterFuncStopped(t *testing.T) {
	e := guarded(t)
	for range 10 {
		time.AfterFunc(time.Hour, func() { _ = e.generate("late") }).Stop()
	}
}

func TestContextAfterFunc(t *testing.T) {
	e := guarded(t)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan bool)
	context.AfterFunc(ctx, func() { _ = e.generate("cancelled"); close(ran) })
	cancel()
	<-ran
}

func TestContextChildren(t *testing.T) {
	e := guarded(t)
	parent, cancel := context.WithCancelCause(t.Context())
	for range 10 {
		child, stop := context.WithTimeout(context.WithValue(parent, e, e), time.Hour)
		defer stop()
		_ = child
	}
	cancel(errors.New("done"))
}

func TestGoroutineThatEndsSoon(t *testing.T) {
	e := guarded(t)
	go func() {
		time.Sleep(5 * time.Millisecond)
		_ = e.generate("late")
	}()
}

func TestRelabelled(t *testing.T) {
	e := guarded(t)
	done := make(chan bool)
	pprof.Do(t.Context(), pprof.Labels("engine", "x"), func(context.Context) {
		go func() { _ = e.generate("x"); close(done) }()
	})
	<-done
}

func TestPipe(t *testing.T) {
	e := guarded(t)
	r, w := io.Pipe()
	go func() {
		_, err := io.WriteString(w, e.generate("x"))
		_ = w.CloseWithError(err)
	}()
	_, err := io.ReadAll(r)
	ok(t, err)
}

func TestCommand(t *testing.T) {
	e := guarded(t)
	cmd := exec.CommandContext(t.Context(), "cat")
	r, w := io.Pipe()
	cmd.Stdin = r
	go func() { _, _ = io.WriteString(w, e.generate("x")); _ = w.Close() }()
	out, err := cmd.Output()
	ok(t, err)
	if len(out) == 0 {
		t.Fatal("nothing")
	}
}

func TestCommandCancelled(t *testing.T) {
	e := guarded(t)
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), e, e))
	cmd := exec.CommandContext(ctx, "sleep", "1000")
	ok(t, cmd.Start())
	cancel()
	_ = cmd.Wait()
}

func TestSignals(t *testing.T) {
	e := guarded(t)
	ctx, stop := signal.NotifyContext(context.WithValue(t.Context(), e, e), os.Interrupt)
	defer stop()
	_ = ctx.Err()
}

func TestTempFile(t *testing.T) {
	e := guarded(t)
	f, err := os.Create(t.TempDir() + "/engine")
	ok(t, err)
	_, err = f.Write(e.weights)
	ok(t, err)
	ok(t, f.Close())
}

func TestPool(t *testing.T) {
	e := guarded(t)
	var pool sync.Pool
	for range 8 {
		pool.Put(&engine{next: e})
	}
	if v, held := pool.Get().(*engine); held {
		_ = v.next.generate("x")
	}
}

func TestSyncMap(t *testing.T) {
	e := guarded(t)
	var m sync.Map
	m.Store(e, e)
	m.Range(func(k, _ any) bool { m.Delete(k); return true })
}

func TestIterator(t *testing.T) {
	e := guarded(t)
	next, stop := iter.Pull(func(yield func(string) bool) {
		for yield(e.generate("x")) {
		}
	})
	next()
	stop()
}

func TestOnce(t *testing.T) {
	e := guarded(t)
	f := sync.OnceValue(func() string { return e.generate("x") })
	if f() != f() {
		t.Fatal("twice")
	}
}

func TestWeakAndUnique(t *testing.T) {
	e := guarded(t)
	w, h := weak.Make(e), unique.Make(e.generate("x"))
	if w.Value() == nil || h.Value() == "" {
		t.Fatal("gone")
	}
}

func TestPanicRecovered(t *testing.T) {
	e := guarded(t)
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	panic(e)
}

func TestCond(t *testing.T) {
	e := guarded(t)
	var mu sync.Mutex
	c := sync.NewCond(&mu)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			mu.Lock()
			defer mu.Unlock()
			for e.calls == 0 {
				c.Wait()
			}
		})
	}
	mu.Lock()
	e.calls++
	mu.Unlock()
	c.Broadcast()
	wg.Wait()
}

func TestSubtests(t *testing.T) {
	e := guarded(t)
	for _, name := range []string{"a", "b"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Cleanup(func() { _ = e.generate(name) })
			_ = e.generate(t.TempDir())
		})
	}
}

func TestCleanupMethodValue(t *testing.T) {
	e := guarded(t)
	for range 20 {
		t.Cleanup(e.close)
	}
}

func (e *engine) close() { e.calls++ }

func TestSynctest(t *testing.T) {
	e := guarded(t)
	synctest.Test(t, func(*testing.T) {
		go func() { time.Sleep(time.Hour); _ = e.generate("x") }()
		time.Sleep(2 * time.Hour)
		synctest.Wait()
	})
}

func TestLinkedEngines(t *testing.T) {
	e := guarded(t)
	e.next = &engine{next: e}
	e.next.next.calls++
}
