package leakcheck

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/enginetest/enginetest/ledger"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var ctx = context.Background()

// brief keeps failing checks short: what is planted here does not go away by waiting.
var brief = Patience(20 * time.Millisecond)

type engine struct {
	name string
	buf  []byte
}

//go:noinline
func newEngine(name string) *engine { return &engine{name: name, buf: make([]byte, 1<<12)} }

var holder *engine

func TestReleased(t *testing.T) {
	r := Track("engine", newEngine("a"), brief)
	require.NoError(t, r.Released(ctx))

	holder = newEngine("b")
	r = Track("engine", holder, brief)
	err := r.Released(ctx)
	var le *Error
	require.ErrorAs(t, err, &le)
	require.Len(t, le.Findings, 1)
	assert.Equal(t, KindReference, le.Findings[0].Kind)
	t.Log(err)

	holder = nil
	require.NoError(t, r.Released(ctx))
}

var global engine

// Timers among many that are pending, on every processor, and stopped: Go keeps them there, and
// what their functions captured is no leak.
func TestStoppedTimersAmongOthers(t *testing.T) {
	n := runtime.GOMAXPROCS(0)
	var refs []*Ref
	var pending, stopped []*time.Timer
	var mu sync.Mutex
	var here atomic.Int64
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			here.Add(1)
			// each on a processor of its own
			for began := time.Now(); here.Load() < int64(n) && time.Since(began) < 100*time.Millisecond; {
			}
			mu.Lock()
			defer mu.Unlock()
			for range 30 {
				pending = append(pending, time.AfterFunc(time.Hour, func() {}))
			}
			o := new([100]*int)
			stopped = append(stopped, time.AfterFunc(time.Hour, func() { o[0] = nil }))
			refs = append(refs, Track("o", o))
		})
	}
	wg.Wait()
	for _, timer := range stopped {
		timer.Stop()
	}
	stopped = nil
	require.NoError(t, Released(t.Context(), refs...))
	for _, timer := range pending {
		timer.Stop()
	}
}

func TestNotTrackable(t *testing.T) {
	tiny, c := new(int32), make(chan int)
	for _, row := range []struct {
		why string
		v   any
		bad bool
	}{
		{"an int32 shares its slot with strangers", tiny, true},
		{"a nil pointer is nobody", (*engine)(nil), true},
		{"nil has no type", nil, true},
		{"a global is never collected", &global, true},
		{"a struct value is a copy", engine{}, true},
		{"a static func is code", func() {}, true},
		{"an empty slice has no array", []int{}, true},
		{"a pointer", newEngine("x"), false},
		{"a slice", make([]byte, 100), false},
		{"a map", map[string]int{"a": len(t.Name())}, false},
		{"a channel", c, false},
		{"a closure", func() { t.Log(c) }, false},
		{"a method value", newEngine("x").method, false},
	} {
		err := Track("it", row.v, WithoutPaths(), Patience(0)).Released(ctx)
		assert.Equal(t, row.bad, errors.Is(err, ErrNotTrackable), "%s: %v", row.why, err)
	}
}

func (e *engine) method() {}

func TestScope(t *testing.T) {
	s := NewScope("fixture", brief)
	stop := make(chan bool)
	pprof.Do(ctx, pprof.Labels("user", "kept"), func(context.Context) {
		s.Do(func() {
			go func() {
				go func() { <-stop }() // a grandchild inherits the label
				<-stop
			}()
		})
	})
	go func() { <-stop }() // not of the scope
	err := s.Gone(ctx)
	require.Error(t, err)
	t.Log(err)
	var le *Error
	require.ErrorAs(t, err, &le)
	assert.Len(t, le.Findings, 2)
	close(stop)
	require.NoError(t, NewScope("other").Gone(ctx))
	require.NoError(t, s.Gone(ctx))
}

// TestScopeOfAlikeGoroutines: alike goroutines are one record of the profile, and the first one has
// a title before it.
func TestScopeOfAlikeGoroutines(t *testing.T) {
	s := NewScope("fixture", brief)
	stop := make(chan bool)
	s.Do(func() {
		for range 50 {
			go func() { <-stop }()
		}
	})
	assert.ErrorContains(t, s.Gone(ctx), "50 of 50 goroutine(s) still running")
	close(stop)
	require.NoError(t, s.Gone(ctx))
}

// TestCertain: from Go 1.27 on, or with GOEXPERIMENT=goroutineleakprofile, a goroutine that nothing can
// wake is told from one that just waits; and a heap dump afterwards explains a leak as before.
func TestCertain(t *testing.T) {
	if pprof.Lookup("goroutineleak") == nil {
		t.Skip("no goroutine leak profile: Go before 1.27, built without GOEXPERIMENT=goroutineleakprofile")
	}
	if os.Getenv("LEAKCHECK_CERTAIN") == "" { // in a process of its own: the goroutine stays for ever
		cmd := exec.Command(os.Args[0], "-test.run=^TestCertain$")
		cmd.Env = append(os.Environ(), "LEAKCHECK_CERTAIN=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	s := NewScope("fixture", brief)
	stop := make(chan bool)
	s.Do(func() {
		go func() { <-make(chan bool) }()
		go func() { <-stop }()
	})
	err := s.Gone(ctx)
	require.ErrorContains(t, err, "certain: the goroutine leak profile proves that it can never run again")
	require.ErrorContains(t, err, "does not call it certain")
	close(stop)
	r := Track("engine", newEngine("a"), brief)
	require.NoError(t, r.Released(ctx))
	holder = newEngine("b")
	defer func() { holder = nil }()
	var found *Error
	require.ErrorAs(t, Track("engine", holder, brief).Released(ctx), &found)
	require.NotEmpty(t, found.Findings[0].Path, "%v", found)
	assert.Contains(t, found.Findings[0].Path[0].Name, "leakcheck.holder", "%v", found)
}

func TestNestedScopes(t *testing.T) {
	outer, inner := NewScope("outer", brief), NewScope("inner", brief)
	stop := make(chan bool)
	outer.Do(func() { inner.Do(func() { go func() { <-stop }() }) })
	assert.Error(t, outer.Gone(ctx))
	assert.Error(t, inner.Gone(ctx))
	close(stop)
	require.NoError(t, outer.Gone(ctx))
	require.NoError(t, inner.Gone(ctx))
}

func TestFreed(t *testing.T) {
	l := ledger.New(true)
	id := l.Add(ledger.Holding{Owner: "kv_cache", Kind: "mapped", Device: "cpu:0", Bytes: 64 << 20})
	err := Freed(ctx, l, brief)
	require.ErrorContains(t, err, "64.0 MiB of device memory not given back by owner kv_cache")
	t.Log(err)
	require.NoError(t, Freed(ctx, l, brief, Allow("buffer: kv_cache", "the test says so")))
	require.NoError(t, l.Remove(id))
	require.NoError(t, Freed(ctx, l))
}

func TestHost(t *testing.T) {
	dir := t.TempDir()
	before, err := Snapshot(dir)
	require.NoError(t, err)
	require.NoError(t, before.Restored(ctx))

	f, err := os.Create(filepath.Join(dir, "weights.bin"))
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	cmd := exec.Command("sleep", "100")
	require.NoError(t, cmd.Start())
	err = before.Restored(ctx, brief)
	require.Error(t, err)
	t.Log(err)
	for _, want := range []string{"weights.bin", "tcp " + l.Addr().String() + " listening", "sleep 100"} {
		assert.ErrorContains(t, err, want)
	}
	// the patterns that the report offers work in other runs too: no port that the kernel picked,
	// no random folder
	assert.ErrorContains(t, err, `Allow("socket: tcp 127.0.0.1:* listening", "reason")`)
	allow := []Option{brief}
	var left *Error
	require.ErrorAs(t, err, &left)
	for _, f := range left.Findings {
		assert.NotRegexp(t, `\d{5}`, f.accept)
		allow = append(allow, Allow(f.accept, "the report said so"))
	}
	require.NoError(t, before.Restored(ctx, allow...))
	cmd.Process.Kill()
	cmd.Wait()
	l.Close()
	f.Close()
	os.Remove(f.Name())
	require.NoError(t, before.Restored(ctx))
}

// An entry of /dev/shm that this process has closed may belong to another process; who watches the
// folder sees it.
func TestSharedMemoryLeftBehind(t *testing.T) {
	careful, err := Snapshot()
	if err != nil {
		t.Skip(err)
	}
	all, err := Snapshot("/dev/shm")
	require.NoError(t, err)
	f, err := os.CreateTemp("/dev/shm", "leakcheck-test")
	if err != nil {
		t.Skip(err)
	}
	defer os.Remove(f.Name())
	left := "file " + f.Name() + " is left behind"
	require.ErrorContains(t, careful.Restored(ctx, brief), left, "open here")
	f.Close()
	require.NoError(t, careful.Restored(ctx))
	require.ErrorContains(t, all.Restored(ctx, brief), left)
}

// TestWithoutDump: when no dump can be taken, the leak is still found, and the report says why
// there is no path.
func TestWithoutDump(t *testing.T) {
	t.Setenv("TMPDIR", "/nonexistent")
	holder = newEngine("b")
	defer func() { holder = nil }()
	err := Track("engine", holder, brief).Released(ctx)
	require.ErrorContains(t, err, `(tracked as "engine") is still reachable`)
	require.ErrorContains(t, err, "no retention path: heapdump: open /nonexistent")
}

func TestAllow(t *testing.T) {
	f := Finding{Signature: "reference: global github.com/acme/llm.kwCache → *llm.Runner"}
	for _, row := range []struct {
		pattern string
		want    bool
	}{
		{f.Signature, true},
		{"reference: global github.com/acme/llm.kwCache → *", true},
		{"reference: global */llm.kwCache → *llm.Runner", true},
		{"reference: global github.com/acme/llm.kwCach", false}, // anchored at both ends
		{"reference: llm.kwCache", false},
		{"goroutine: global github.com/acme/llm.kwCache → *llm.Runner", false}, // another kind
	} {
		a := newAllowance(row.pattern, "because")
		require.NoError(t, a.err)
		assert.Equal(t, row.want, allowed(f, []*allowance{a}) == a, row.pattern)
		assert.Equal(t, row.want, a.matched.Load(), row.pattern)
	}
	for _, bad := range []string{
		"", "e", "sh", "testing.(*T)", "*", "goroutine", "goroutine: *", "goroutine:*",
		"leak: x",
	} {
		l := ledger.New(false)
		err := Freed(ctx, l, brief, Allow(bad, "because"))
		require.ErrorIs(t, err, ErrPattern, bad)
		l.Add(ledger.Holding{Owner: "e", Bytes: 1})
		err = Freed(ctx, l, brief, Allow(bad, "because"))
		require.ErrorIs(t, err, ErrPattern, bad)
		require.ErrorContains(t, err, "not given back by owner e", bad)
	}
	l := ledger.New(false)
	l.Add(ledger.Holding{Owner: "known", Bytes: 1})
	l.Add(ledger.Holding{Owner: "new", Bytes: 1})
	known, stale := Allow("buffer: known", "a library's own"), Allow("buffer: gone", "fixed since")
	var found *Error
	require.ErrorAs(t, Freed(ctx, l, brief, known, stale), &found)
	require.Len(t, found.Findings, 1)
	assert.Equal(t, "buffer: new", found.Findings[0].Signature)
	require.Len(t, found.Accepted, 1)
	assert.Equal(t, "a library's own", found.Accepted[0].Reason)
	assert.Equal(t, []string{"buffer: gone"}, Unmatched(known, stale))
}

// A goroutine that an Allow covers is not waited for.
func TestAllowGoroutine(t *testing.T) {
	s := NewScope("pool", Patience(time.Hour), Allow("goroutine: *leakcheck.TestAllowGoroutine.* created by *",
		"the test's"))
	stop := make(chan bool)
	s.Do(func() { go func() { <-stop }() })
	require.NoError(t, s.Gone(ctx))
	close(stop)
}

// What a goroutine in io.Copy keeps is accepted by the name of who called io.Copy: io's own name
// would accept all of them.
func TestAcceptedByTheCaller(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	done := make(chan bool)
	ref := copyTo(newEngine("copy"), r, done)
	err = ref.Released(ctx)
	require.ErrorContains(t, err, "in io.")
	const pattern = "reference: goroutine github.com/enginetest/enginetest/leakcheck.copyTo.func1 → *leakcheck.engine"
	require.ErrorContains(t, err, `to accept: leakcheck.Allow("`+pattern+`", "reason")`)
	var le *Error
	require.ErrorAs(t, err, &le)
	require.NoError(t, newError(le.Findings, []*allowance{newAllowance(pattern, "")}))
	w.Close()
	<-done
	require.NoError(t, ref.Released(ctx))
}

//go:noinline
func copyTo(e *engine, r io.Reader, done chan bool) *Ref {
	ref := Track("engine", e, brief)
	go func() {
		defer close(done)
		io.Copy(e, r)
	}()
	time.Sleep(time.Millisecond)
	return ref
}

func (e *engine) Write(p []byte) (int, error) { return copy(e.buf, p), nil }
