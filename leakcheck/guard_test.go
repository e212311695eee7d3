package leakcheck_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/enginetest/enginetest/leakcheck"
	"github.com/enginetest/enginetest/ledger"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// recorder is a test that notes what is reported.
type recorder struct {
	name     string
	cleanups []func()
	errors   []string
	logs     []string
}

func (r *recorder) Helper()                   {}
func (r *recorder) Name() string              { return r.name }
func (r *recorder) Cleanup(f func())          { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(f string, a ...any) { r.errors = append(r.errors, fmt.Sprintf(f, a...)) }
func (r *recorder) Logf(f string, a ...any)   { r.logs = append(r.logs, fmt.Sprintf(f, a...)) }

// end runs the cleanups, the last one first.
func (r *recorder) end() string {
	for _, f := range slices.Backward(r.cleanups) {
		f()
	}
	return strings.Join(r.errors, "\n")
}

func TestGuard(t *testing.T) {
	var stop chan bool
	for _, row := range []struct {
		name string
		body func(r *recorder, g *leakcheck.Guarded)
		want []string // nothing: the test passes
	}{
		{"nothing left", func(_ *recorder, g *leakcheck.Guarded) { g.Track("engine", &Engine{}) }, nil},
		{"a cleanup that closes", func(r *recorder, g *leakcheck.Guarded) {
			g.Track("engine", open("x"))
			r.Cleanup(func() { clear(engines) })
		}, nil},
		{"an engine in a global", func(_ *recorder, g *leakcheck.Guarded) {
			g.Track("engine", open("x"))
		}, []string{`tracked as "engine"`, "leakcheck_test.engines"}},
		{"two engines in one global are one finding", func(_ *recorder, g *leakcheck.Guarded) {
			g.Track("engine/0", open("x"))
			g.Track("engine/1", open("y"))
		}, []string{`tracked as "engine/0"`, "one that starts like it: engine/1"}},
		{"a part behind its engine", func(_ *recorder, g *leakcheck.Guarded) {
			e := open("x")
			g.Track("batch", e.batch)
			g.Track("engine", e)
		}, []string{`tracked as "engine"`, "batch"}},
		{"an accepted global", func(r *recorder, _ *leakcheck.Guarded) {
			leakcheck.Guard(r, leakcheck.Patience(0),
				leakcheck.Allow("reference: global *leakcheck_test.engines → *leakcheck_test.Engine",
					"known")).Track("engine", open("x"))
		}, nil},
		{"a goroutine", func(*recorder, *leakcheck.Guarded) {
			c := stop
			go func() { <-c }()
		}, []string{"1 of 1 goroutine(s) still running", "[chan receive]"}},
		{"a buffer", func(_ *recorder, g *leakcheck.Guarded) {
			l := ledger.New(false)
			l.Add(ledger.Holding{Owner: "workspace", Bytes: 1 << 20})
			buffers = l
			g.Buffers(l)
		}, []string{"1.0 MiB of device memory not given back by owner workspace"}},
		{"what cannot be tracked", func(_ *recorder, g *leakcheck.Guarded) {
			g.Track("tiny", new(int8))
		}, []string{"not trackable", "packs objects under 16 bytes"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Cleanup(func() { goleak.VerifyNone(t, goleak.IgnoreCurrent()) })
			stop = make(chan bool)
			r := &recorder{name: row.name}
			row.body(r, leakcheck.Guard(r, leakcheck.Patience(10*time.Millisecond)))
			text := r.end()
			if len(row.want) == 0 {
				assert.Empty(t, text)
			}
			for _, w := range row.want {
				assert.Contains(t, text, w)
			}
			close(stop)
			clear(engines)
		})
	}
}

var buffers *ledger.Ledger

// TestGuardInParallel: of three tests that run at the same time, the one that leaks is named and
// the others pass.
func TestGuardInParallel(t *testing.T) {
	others := goleak.IgnoreCurrent()
	stop := make(chan bool)
	results := make([]string, 3)
	t.Run("group", func(t *testing.T) {
		for i := range results {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				r := &recorder{name: t.Name()}
				leakcheck.Guard(r, leakcheck.Patience(20*time.Millisecond))
				ended := make(chan bool)
				go func() { time.Sleep(time.Millisecond); close(ended) }()
				if i == 1 {
					go func() { <-stop }()
				}
				<-ended
				results[i] = r.end()
			})
		}
	})
	close(stop)
	assert.Empty(t, results[0])
	assert.Contains(t, results[1], "TestGuardInParallel/group/1: 1 of 1 goroutine(s) still running")
	assert.Empty(t, results[2])
	require.NoError(t, goleak.Find(others))
}
