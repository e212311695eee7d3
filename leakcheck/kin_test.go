package leakcheck

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"runtime/pprof"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// parked is what planted goroutines do; ready says that it has begun.
func parked(ready, stop chan bool) {
	ready <- true
	<-stop
}

// TestScopeWithoutLabels plants goroutines that don't carry the scope's label. Each is found and
// attributed; each ends, and then the scope is silent.
func TestScopeWithoutLabels(t *testing.T) {
	type task func()
	worker := make(chan task)
	go func() {
		for f := range worker {
			f()
		}
	}()
	defer close(worker)
	for _, row := range []struct {
		name  string
		plant func(ready, stop chan bool)
		why   string
	}{
		{"labels replaced", func(ready, stop chan bool) {
			pprof.SetGoroutineLabels(context.Background())
			go parked(ready, stop)
		}, "by its creator"},
		{"labels replaced by a child", func(ready, stop chan bool) {
			go func() {
				pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("user", "1")))
				go parked(ready, stop)
				parked(ready, stop)
			}()
			<-ready
		}, "by its creator"},
		{"by a child that has ended", func(ready, stop chan bool) {
			done := make(chan bool)
			go func() {
				defer close(done)
				pprof.SetGoroutineLabels(context.Background())
				go parked(ready, stop)
			}()
			<-done
		}, "because nothing else ran"},
		{"time.AfterFunc", func(ready, stop chan bool) {
			time.AfterFunc(time.Millisecond, func() { parked(ready, stop) })
		}, "because nothing else ran"},
		{"context.AfterFunc with a deadline", func(ready, stop chan bool) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			context.AfterFunc(ctx, func() { parked(ready, stop) })
			context.AfterFunc(ctx, cancel)
		}, ""}, // the timer may be faster than AfterFunc: then its caller is the creator
		{"a worker from before", func(ready, stop chan bool) {
			worker <- func() { go parked(ready, stop) }
		}, "because nothing else ran"},
		{"a cleanup", func(ready, stop chan bool) {
			runtime.AddCleanup(new([100]int), func(int) { go parked(ready, stop) }, 0)
			runtime.GC()
		}, "because nothing else ran"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := NewScope(row.name, brief)
			ready, stop := make(chan bool), make(chan bool)
			s.Do(func() {
				row.plant(ready, stop)
				<-ready
			})
			err := s.Gone(t.Context())
			require.ErrorContains(t, err, "leakcheck.parked")
			assert.ErrorContains(t, err, "attributed "+row.why)
			close(stop)
			s.cfg.patience = time.Minute
			require.NoError(t, s.Gone(t.Context()))
		})
	}
}

// TestNotTheScopes: what the test itself starts outside of Do, and what older goroutines start for
// it, is not the fixture's.
func TestNotTheScopes(t *testing.T) {
	stop := make(chan bool)
	defer close(stop)
	ready := make(chan bool)
	accept := make(chan bool)
	go func() { // as a server that TestMain started
		for range accept {
			go parked(ready, stop)
		}
	}()
	defer close(accept)
	s := NewScope("fixture", brief)
	s.Do(func() {})
	go parked(ready, stop)
	<-ready
	s.Do(func() {})
	go func() { go parked(ready, stop); parked(ready, stop) }()
	<-ready
	<-ready
	accept <- true
	<-ready
	require.NoError(t, s.Gone(t.Context()))
}

// TestCertainFinds: a goroutine that no label and no creator attributes is found when the runtime
// proves that nothing can ever wake it.
func TestCertainFinds(t *testing.T) {
	if pprof.Lookup("goroutineleak") == nil {
		t.Skip("no goroutine leak profile: Go before 1.27, built without GOEXPERIMENT=goroutineleakprofile")
	}
	if os.Getenv("LEAKCHECK_CERTAIN") == "" { // in a process of its own: the goroutine stays for ever
		cmd := exec.Command(os.Args[0], "-test.run=^TestCertainFinds$")
		cmd.Env = append(os.Environ(), "LEAKCHECK_CERTAIN=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	work, ready, stop := make(chan chan bool), make(chan bool), make(chan bool)
	defer close(stop)
	go func() {
		for c := range work {
			go parked(ready, c)
		}
	}()
	defer close(work)
	s := NewScope("fixture", brief)
	s.Do(func() {})
	work <- stop
	<-ready
	require.NoError(t, s.Gone(t.Context()), "something can wake it")
	s = NewScope("fixture", brief)
	s.Do(func() {})
	work <- make(chan bool)
	<-ready
	require.ErrorContains(t, s.Gone(t.Context()), "certain: the goroutine leak profile proves")
}

// TestScopesSideBySide: what has no label and came while two scopes were open is blamed on neither.
func TestScopesSideBySide(t *testing.T) {
	a, b := NewScope("a", brief), NewScope("b", brief)
	ready, stop := make(chan bool), make(chan bool)
	defer close(stop)
	a.Do(func() {})
	b.Do(func() {
		time.AfterFunc(time.Millisecond, func() { parked(ready, stop) })
		<-ready
	})
	assert.NoError(t, a.Gone(t.Context()))
	assert.NoError(t, b.Gone(t.Context()))

	c := NewScope("c", brief) // those two are over
	c.Do(func() {
		time.AfterFunc(time.Millisecond, func() { parked(ready, stop) })
		<-ready
	})
	assert.ErrorContains(t, c.Gone(t.Context()), "leakcheck.parked")
}

// TestParallelScopes: beside other tests, creators still tell whose a goroutine is; a timer's is
// blamed on no test.
func TestParallelScopes(t *testing.T) {
	t.Run("tests", func(t *testing.T) {
		for _, leaks := range []bool{true, false} {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				s := NewScope(t.Name(), brief)
				ready, stop := make(chan bool), make(chan bool)
				defer close(stop)
				s.Do(func() {
					time.AfterFunc(time.Millisecond, func() { parked(ready, stop) })
					<-ready
					if leaks {
						pprof.SetGoroutineLabels(context.Background())
						go parked(ready, stop)
						<-ready
					}
				})
				err := s.Gone(t.Context())
				if !leaks {
					assert.NoError(t, err)
				} else if assert.Error(t, err) {
					assert.ErrorContains(t, err, "1 of 1 goroutine(s)")
					assert.ErrorContains(t, err, "attributed by its creator")
				}
			})
		}
	})
}

// janitor is a cache as go-cache makes them: a finalizer of the part that users see stops its
// goroutine.
type janitor struct{ stop chan bool }

func newCache() *[1]*janitor {
	c := &[1]*janitor{{make(chan bool)}}
	go func(stop chan bool) { <-stop }(c[0].stop)
	runtime.SetFinalizer(c, func(c *[1]*janitor) { c[0].stop <- true })
	return c
}

// TestStoppedByFinalizer: garbage is collected before the verdict, twice: a finalizer may drop what
// has the next one.
func TestStoppedByFinalizer(t *testing.T) {
	s := NewScope("fixture", Patience(time.Minute))
	s.Do(func() {
		runtime.KeepAlive(newCache())
		inner := newCache()
		outer := &[1]any{inner}
		runtime.SetFinalizer(outer, func(*[1]any) {})
	})
	require.NoError(t, s.Gone(t.Context()))
}
