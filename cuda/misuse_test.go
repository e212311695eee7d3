package cuda

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A zero Worker has no thread: whoever asked it waited for ever.
func TestZeroWorker(t *testing.T) {
	var w Worker
	for _, err := range []error{w.Do(func() error { return nil }), w.Close(t.Context())} {
		assert.ErrorIs(t, err, errArguments)
		assert.ErrorContains(t, err, "does not come from NewWorker")
	}
}

// Every mistake is found without asking the driver: on the stub the count of its calls does not
// move.
func TestMisuse(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		w := r.worker(t, 0)
		var live, freed *Memory
		var pinned *Pinned
		var s, closed *Stream
		var e *Event
		var g *Graph
		var x *GraphExec
		var mod *Module
		var f *Function
		do(t, w, func() {
			var err error
			live, err = w.Alloc("live", 1000)
			require.NoError(t, err)
			freed, err = w.Alloc("freed", 1000)
			require.NoError(t, err)
			require.NoError(t, freed.Free())
			pinned, err = w.AllocPinned("pinned", 100)
			require.NoError(t, err)
			s, err = w.NewStream("s")
			require.NoError(t, err)
			closed, err = w.NewStream("closed")
			require.NoError(t, err)
			require.NoError(t, closed.Close())
			e, err = w.NewEvent("e")
			require.NoError(t, err)
			mod, err = w.LoadModule("m", "test.ptx", []byte(testPTX))
			require.NoError(t, err)
			f, err = mod.Function("fill32")
			require.NoError(t, err)
			g, err = s.Capture("g", func() error { return live.Fill(0, 10, 0, s) })
			require.NoError(t, err)
			x, err = g.Instantiate("x")
			require.NoError(t, err)
		})
		b := make([]byte, 10)
		inside := []struct {
			name string
			kind error
			call func() error
		}{
			{"free twice", ErrDoubleFree, freed.Free},
			{"close twice", ErrDoubleFree, closed.Close},
			{"copy from freed", ErrUseAfterFree, func() error { return freed.CopyTo(b, 0) }},
			{"copy to freed", ErrUseAfterFree, func() error { return freed.CopyFrom(0, b) }},
			{"fill freed", ErrUseAfterFree, func() error { return freed.Fill(0, 1, 0, nil) }},
			{"device copy of freed", ErrUseAfterFree, func() error { return live.CopyDevice(0, freed, 0, 1, nil) }},
			{"freed argument", ErrUseAfterFree, func() error { return f.Launch(nil, Launch{}, NewArgs(3).Memory(0, freed, 0)) }},
			{"launch on a closed stream", ErrUseAfterFree, func() error { return f.Launch(closed, Launch{}, NewArgs(3)) }},
			{"graph on a closed stream", ErrUseAfterFree, func() error { return x.Launch(closed) }},
			{"past the end", errRange, func() error { return live.CopyTo(b, 991) }},
			{"before the beginning", errRange, func() error { return live.CopyFrom(-1, b) }},
			{"overflowing", errRange, func() error { return live.Fill(1<<62, 1<<62, 0, nil) }},
			{"pinned past the end", errRange, func() error { return live.CopyFromAsync(0, pinned, 95, 10, s) }},
			{"nothing pinned", errArguments, func() error { return live.CopyFromAsync(0, nil, 0, 10, s) }},
			{"no bytes", errArguments, func() error { _, err := w.Alloc("x", 0); return err }},
			{"negative bytes", errArguments, func() error { _, err := w.Alloc("x", -1); return err }},
			{"empty image", errArguments, func() error { _, err := w.LoadModule("x", "empty", nil); return err }},
			{"empty slice", errArguments, func() error { _, err := w.Register("x", nil); return err }},
			{"wait for nothing", errArguments, func() error { return s.Wait(nil) }},
			{"close from inside", errWrongThread, func() error { return w.Close(context.Background()) }},
			{"peer of itself", errArguments, func() error { return w.EnablePeer(w) }},
			{"alloc in a capture", errCapturing, func() error {
				_, err := s.Capture("g", func() error { _, err := w.Alloc("x", 1); return err })
				return err
			}},
			{"free in a capture", errCapturing, func() error {
				_, err := s.Capture("g", live.Free)
				return err
			}},
			{"capture in a capture", errCapturing, func() error {
				_, err := s.Capture("g", func() error { _, err := s.Capture("h", live.Free); return err })
				return err
			}},
			{"too few arguments", errArguments, func() error { return f.Launch(nil, Launch{}, NewArgs(2)) }},
			{"too many arguments", errArguments, func() error { return f.Launch(nil, Launch{}, NewArgs(4)) }},
			{"no arguments", errArguments, func() error { return f.Launch(nil, Launch{}, nil) }},
			{"nil function", errArguments, func() error { return (*Function)(nil).Launch(nil, Launch{}, nil) }},
			{"nil memory", errArguments, func() error { return (*Memory)(nil).Free() }},
			{"nil stream", errArguments, func() error { return (*Stream)(nil).Close() }},
		}
		before := r.calls()
		do(t, w, func() {
			for _, c := range inside {
				checkMisuse(t, c.name, c.kind, c.call())
			}
		})
		if r.stub != nil {
			before += 3 * 3 // captures that begin, end and drop their graph
		}
		outside := map[string]func() error{
			"alloc":    func() error { _, err := w.Alloc("x", 1); return err },
			"pinned":   func() error { _, err := w.AllocPinned("x", 1); return err },
			"stream":   func() error { _, err := w.NewStream("x"); return err },
			"event":    func() error { _, err := w.NewEvent("x"); return err },
			"module":   func() error { _, err := w.LoadModule("x", "x", []byte("x")); return err },
			"function": func() error { _, err := mod.Function("fill32"); return err },
			"free":     live.Free,
			"copy":     func() error { return live.CopyTo(b, 0) },
			"launch":   func() error { return f.Launch(s, Launch{}, NewArgs(3)) },
			"capture":  func() error { _, err := s.Capture("g", func() error { return nil }); return err },
			"graph":    func() error { return x.Launch(s) },
			"record":   func() error { return e.Record(s) },
			"sync":     w.Synchronize,
			"info":     func() error { _, _, err := w.MemInfo(); return err },
		}
		for name, call := range outside {
			checkMisuse(t, name+" off the thread", errWrongThread, call())
		}
		assert.Equal(t, before, r.calls(), "driver calls")

		do(t, w, func() {
			for _, f := range []func() error{x.Close, g.Close, mod.Close, e.Close, s.Close, pinned.Free, live.Free} {
				require.NoError(t, f())
			}
		})
		require.NoError(t, closeSoon(w))
		before = r.calls()
		for name, call := range outside {
			checkMisuse(t, name+" after Close", ErrClosed, call())
		}
		checkMisuse(t, "Do after Close", ErrClosed, w.Do(func() error { return nil }))
		require.NoError(t, closeSoon(w), "closing twice gives the first answer")
		assert.Equal(t, before, r.calls(), "driver calls")
	})
}

func checkMisuse(t *testing.T, name string, kind, err error) {
	t.Helper()
	var e *misuseError
	if !errors.As(err, &e) || !errors.Is(err, kind) {
		t.Errorf("%s: got %v, want a misuse of kind %q", name, err, kind)
		return
	}
	t.Logf("%-28s %v", name, err)
}

func TestAnotherWorkersMemory(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		a, b := r.worker(t, 0), r.worker(t, 0) // one primary context, two owners
		var m *Memory
		do(t, a, func() {
			var err error
			m, err = a.Alloc("a's", 100)
			require.NoError(t, err)
		})
		do(t, b, func() {
			n, err := b.Alloc("b's", 100)
			require.NoError(t, err)
			checkMisuse(t, "copy", errWrongWorker, n.CopyDevice(0, m, 0, 10, nil))
			checkMisuse(t, "free", errWrongThread, m.Free())
			require.NoError(t, n.Free())
		})
		require.NoError(t, closeSoon(b))
		do(t, a, func() { // b's end did not end a's context
			require.NoError(t, m.CopyFrom(0, []byte{1, 2, 3}))
			require.NoError(t, m.Free())
		})
	})
}

func TestDo(t *testing.T) {
	r := stubRig(t, 1, 1<<20)
	w := r.worker(t, 0)
	require.ErrorIs(t, w.Do(func() error { return assert.AnError }), assert.AnError)

	err := w.Do(func() error { panic(assert.AnError) })
	var p *PanicError
	require.ErrorAs(t, err, &p)
	require.ErrorIs(t, err, assert.AnError)
	require.Contains(t, string(p.Stack), "TestDo")

	require.NoError(t, w.Do(func() error { return w.Do(func() error { return w.Synchronize() }) }), "Do inside Do")

	require.NoError(t, w.Do(func() error {
		require.ErrorAs(t, w.Do(func() error { panic(assert.AnError) }), &p, "a panic inside ends the inner Do alone")
		return w.Synchronize()
	}))

	t.Run("from many goroutines", func(t *testing.T) {
		var wg sync.WaitGroup
		var n int // no lock: jobs run one after the other
		for range 20 {
			wg.Go(func() {
				for range 20 {
					assert.NoError(t, w.Do(func() error { n++; return w.Synchronize() }))
				}
			})
		}
		wg.Wait()
		require.Equal(t, 400, n)
	})

	t.Run("Goexit", func(t *testing.T) { // what t.FailNow does
		ended := make(chan bool)
		go func() {
			defer close(ended)
			_ = w.Do(func() error { runtime.Goexit(); return nil })
			ended <- true
		}()
		require.False(t, <-ended, "the caller's goroutine went on")
		do(t, w, func() {
			m, err := w.Alloc("on the new thread", 10)
			require.NoError(t, err)
			require.NoError(t, m.Free())
		})
	})

	t.Run("context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		release := make(chan struct{})
		err := w.DoContext(ctx, func() error { cancel(); <-release; return nil })
		var h *HangError
		require.ErrorAs(t, err, &h)
		require.ErrorIs(t, err, context.Canceled)
		require.Contains(t, err.Error(), "in Go code")
		t.Log(err)
		err = w.DoContext(ctx, func() error { t.Error("ran after its caller had given up"); return nil })
		require.ErrorIs(t, err, context.Canceled)
		ctx2, cancel2 := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel2()
		err = w.DoContext(ctx2, func() error { t.Error("ran after its caller had given up"); return nil })
		require.ErrorAs(t, err, &h)
		close(release)
		require.NoError(t, w.Do(func() error { return nil }))
	})
}

func TestCallsMakeNoGarbage(t *testing.T) {
	r := stubRig(t, 1, 1<<20)
	w := r.worker(t, 0)
	do(t, w, func() {
		mod, err := w.LoadModule("m", "test.ptx", []byte(testPTX))
		require.NoError(t, err)
		f, err := mod.Function("fill32")
		require.NoError(t, err)
		m, err := w.Alloc("m", 400)
		require.NoError(t, err)
		p, err := w.AllocPinned("p", 400)
		require.NoError(t, err)
		s, err := w.NewStream("s")
		require.NoError(t, err)
		e, err := w.NewFence("e")
		require.NoError(t, err)
		g, err := s.Capture("g", func() error { return m.Fill(0, 10, 0, s) })
		require.NoError(t, err)
		x, err := g.Instantiate("x")
		require.NoError(t, err)
		args := NewArgs(3).Memory(0, m, 0).Uint32(2, 100)
		calls := map[string]func() error{
			"launch": func() error { args.Uint32(1, 7); return f.Launch(s, Launch{Grid: Dim{X: 1}, Block: Dim{X: 128}}, args) },
			"programmatic": func() error {
				return f.Launch(s, Launch{Grid: Dim{X: 1}, Block: Dim{X: 128}, Programmatic: true}, args)
			},
			"graph":       func() error { return x.Launch(s) },
			"record":      func() error { return e.Record(s) },
			"wait":        func() error { return s.Wait(e) },
			"copy":        func() error { return m.CopyFromAsync(0, p, 0, 400, s) },
			"fill":        func() error { return m.Fill(0, 400, 0, s) },
			"synchronize": s.Synchronize,
		}
		for name, call := range calls {
			n := testing.AllocsPerRun(200, func() { require.NoError(t, call()) })
			if !raceEnabled { // the race detector makes sync.Pool forget
				assert.Zero(t, n, name)
			}
		}
		for _, f := range []func() error{x.Close, g.Close, e.Close, s.Close, p.Free, m.Free, mod.Close} {
			require.NoError(t, f())
		}
	})
}
