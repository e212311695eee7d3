package engine

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/scheduler/fakerunner"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStates(t *testing.T) {
	all := []State{Starting, Running, Sleeping, Draining, ShuttingDown, Stopped, Failed}
	allowed := map[State]string{
		Starting:     "running, shutting down, failed",
		Running:      "sleeping, draining, shutting down, failed",
		Sleeping:     "running, draining, shutting down, failed",
		Draining:     "shutting down, failed",
		ShuttingDown: "stopped",
		Stopped:      "",
		Failed:       "shutting down",
	}
	for _, from := range all {
		var to []string
		for _, next := range all {
			s := from
			if s.to(next) {
				assert.Equal(t, next, s)
				to = append(to, next.String())
			} else {
				assert.Equal(t, from, s)
			}
		}
		assert.ElementsMatch(t, strings.FieldsFunc(allowed[from], func(r rune) bool {
			return r == ','
		}), prefixed(to), "from %s", from)
	}
	assert.Equal(t, "State(9)", State(9).String())
}

// prefixed puts back the space that splitting at commas leaves on all but the first.
func prefixed(names []string) []string {
	order := []string{"running", "sleeping", "draining", "shutting down", "stopped", "failed"}
	var out []string
	for _, n := range order {
		for _, have := range names {
			if have == n {
				if len(out) > 0 {
					n = " " + n
				}
				out = append(out, n)
			}
		}
	}
	return out
}

func TestRefusals(t *testing.T) {
	cause := errors.New("boom")
	for _, tc := range []struct {
		state State
		cause error
		want  error
	}{
		{Running, nil, nil},
		{Sleeping, nil, llm.ErrSleeping},
		{Starting, nil, llm.ErrStopped},
		{Draining, nil, llm.ErrStopped},
		{ShuttingDown, nil, llm.ErrStopped},
		{Stopped, nil, llm.ErrStopped},
		{Failed, cause, llm.ErrEngineDead},
		{Stopped, cause, llm.ErrEngineDead},
	} {
		assert.ErrorIs(t, tc.state.refusal(tc.cause), tc.want, tc.state)
	}
	assert.ErrorIs(t, Failed.refusal(cause), cause)
}

func fds(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("cannot count file descriptors: ", err)
	}
	return len(entries)
}

func TestCyclesLeaveNothing(t *testing.T) {
	cycle := func() {
		e, err := Open(t.Context(), Config{Model: tinyLlama, Logger: quiet})
		require.NoError(t, err)
		require.NotEmpty(t, e.Holdings())
		assert.Equal(t, []int32{409}, one(t, e, []int32{306}, SamplingParams{MaxTokens: 1}).TokenIDs)
		require.NoError(t, e.Shutdown(t.Context()))
		require.Empty(t, e.Holdings())
	}
	cycle()
	files, goroutines := fds(t), runtime.NumGoroutine()
	for range 20 {
		cycle()
	}
	assert.Equal(t, files, fds(t))
	for end := time.Now().Add(time.Minute); time.Now().Before(end); { // the last loop may still be returning
		if runtime.NumGoroutine() <= goroutines {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), goroutines)
}

func BenchmarkCycle(b *testing.B) {
	for b.Loop() {
		e, err := Open(b.Context(), Config{Model: tinyLlama, Logger: quiet})
		require.NoError(b, err)
		one(b, e, []int32{306}, SamplingParams{MaxTokens: 1})
		require.NoError(b, e.Shutdown(b.Context()))
	}
}

func TestAfterShutdown(t *testing.T) {
	e := openTiny(t, Config{})
	require.NoError(t, e.Err())
	require.NoError(t, e.Shutdown(t.Context()))
	<-e.Done()
	assert.ErrorIs(t, e.Err(), llm.ErrStopped)
	_, err := e.Generate(t.Context(), Request{PromptTokenIDs: ids(3, 0)})
	assert.ErrorIs(t, err, llm.ErrStopped)
	assert.EqualError(t, err, "engine: stopped")
	for _, err := range e.Stream(t.Context(), Request{PromptTokenIDs: ids(3, 0)}) {
		assert.ErrorIs(t, err, llm.ErrStopped)
	}
	assert.ErrorIs(t, e.ResetPrefixCache(t.Context()), llm.ErrStopped)
	_, err = e.Encode("x")
	assert.ErrorIs(t, err, llm.ErrStopped)
	assert.False(t, e.Abort("x"))
	assert.Empty(t, e.Parts())
	assert.Equal(t, Stopped, e.Stats().State)
}

// slowRunner makes every step last, so that a shutdown meets requests in flight.
func slowRunner(step time.Duration) *fakerunner.Runner {
	return &fakerunner.Runner{OnExecute: func(*modelrunner.Batch) error { time.Sleep(step); return nil }}
}

func TestShutdownWithRequestsInFlight(t *testing.T) {
	e := openFake(t, Config{Model: "fake"}, slowRunner(5*time.Millisecond), false)
	type result struct {
		outs []Output
		err  error
	}
	results := make(chan result)
	for i := range 4 {
		go func() {
			outs, err := e.Generate(context.Background(),
				Request{PromptTokenIDs: ids(5, i), Sampling: SamplingParams{MaxTokens: 900, IgnoreEOS: true}})
			results <- result{outs, err}
		}()
	}
	require.Eventually(t, func() bool { return e.Stats().Running == 4 }, time.Minute, time.Millisecond)
	before := e.Stats().OutputTokens
	require.Eventually(t, func() bool { return e.Stats().OutputTokens > before+8 }, time.Minute, time.Millisecond)
	var errs [8]error
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = e.Shutdown(context.Background()) })
	}
	wg.Wait()
	for _, err := range errs {
		assert.NoError(t, err)
	}
	for range 4 {
		r := <-results
		assert.ErrorIs(t, r.err, llm.ErrStopped)
		require.Len(t, r.outs, 1)
		assert.Equal(t, llm.FinishAbort, r.outs[0].Completions[0].FinishReason)
		assert.NotEmpty(t, r.outs[0].Completions[0].TokenIDs)
	}
	s := e.Stats()
	assert.Equal(t, 4, s.Aborted)
	assert.Zero(t, s.KVBlocksUsed+s.Running+s.Waiting+s.Errored)
}

func TestShutdownDeadlineNamesWhatRuns(t *testing.T) {
	release := make(chan struct{})
	in := make(chan struct{})
	steps := 0
	r := &fakerunner.Runner{OnExecute: func(*modelrunner.Batch) error {
		if steps++; steps == 2 { // the first is the profiling pass
			close(in)
			<-release
		}
		return nil
	}}
	e := openFake(t, Config{Model: "fake"}, r, false)
	done := make(chan error)
	go func() {
		_, err := e.Generate(context.Background(), Request{PromptTokenIDs: ids(5, 0)})
		done <- err
	}()
	<-in
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	err := e.Shutdown(ctx)
	var late *ShutdownTimeoutError
	require.ErrorAs(t, err, &late)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Equal(t, "a forward pass", late.Phase)
	assert.Positive(t, late.Running)
	assert.Equal(t, ShuttingDown, e.State())
	assert.NotEmpty(t, e.Holdings(), "the pass still uses it")
	close(release)
	assert.NoError(t, e.Shutdown(t.Context()), "the shutdown went on")
	assert.ErrorIs(t, <-done, llm.ErrStopped)
}

// A buffer that nothing releases is named, with its owner, size and place.
func TestLeakIsNamed(t *testing.T) {
	r := &fakerunner.Runner{}
	e, err := open(t.Context(), Config{Model: "fake", RecordStacks: true}, fakeLoader(r, false))
	require.NoError(t, err)
	e.b.(*core).ledger.Add(ledger.Holding{Owner: "cuda_graphs", Kind: "plain", Device: "cpu:0", Bytes: 3 << 20})
	err = e.Shutdown(t.Context())
	var leak *LeakError
	require.ErrorAs(t, err, &leak)
	require.Len(t, leak.Holdings, 1)
	assert.Contains(t, err.Error(), "3.0 MiB of device memory still held after shutdown, allocations: 1")
	assert.Contains(t, err.Error(), "cuda_graphs")
	assert.Contains(t, err.Error(), "lifecycle_test.go:")
	assert.Equal(t, err, e.Shutdown(t.Context()), "every call gives the same result")
	assert.Equal(t, leak.Holdings, e.Holdings())
	assert.Equal(t, 1, r.Closed())
}

func TestDroppedEngineIsReportedOnce(t *testing.T) {
	var log bytes.Buffer
	var mu sync.Mutex
	logger := slog.New(slog.NewTextHandler(writer(func(p []byte) { mu.Lock(); log.Write(p); mu.Unlock() }), nil))
	printed := func() string { mu.Lock(); defer mu.Unlock(); return log.String() }

	drop := func() *core {
		e, err := open(t.Context(), Config{Model: "fake", Logger: logger}, fakeLoader(&fakerunner.Runner{}, false))
		require.NoError(t, err)
		one(t, e, ids(3, 0), SamplingParams{})
		return e.b.(*core)
	}
	c := drop()
	require.Eventually(t, func() bool { runtime.GC(); return printed() != "" }, time.Minute, time.Millisecond)
	for range 3 {
		runtime.GC()
	}
	assert.Equal(t, 1, strings.Count(printed(), "engine dropped without Shutdown"), printed())
	assert.Contains(t, printed(), "lifecycle_test.go", "where it was opened")
	assert.Contains(t, printed(), "state=running")
	assert.NotEmpty(t, c.ledger.Holdings(), "it is reported, not released")
	require.NoError(t, (&Engine{b: c}).Shutdown(t.Context()))

	log.Reset()
	shut := func() {
		e, err := open(t.Context(), Config{Model: "fake", Logger: logger}, fakeLoader(&fakerunner.Runner{}, false))
		require.NoError(t, err)
		require.NoError(t, e.Shutdown(t.Context()))
	}
	shut()
	for range 5 {
		runtime.GC()
	}
	assert.Empty(t, printed(), "an engine that was shut down is not reported")
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) { w(p); return len(p), nil }

func TestOpenIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Open(ctx, Config{Model: tinyLlama})
	assert.ErrorIs(t, err, context.Canceled)

	for _, point := range []llm.FaultPoint{llm.FaultLoad, llm.FaultAllocate, llm.FaultProfile} { // cancelled while it hangs there
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		_, err = Open(ctx, Config{Model: tinyLlama, Faults: []llm.Fault{{Point: point, Action: llm.ActHang}}})
		cancel()
		assert.ErrorIs(t, err, context.DeadlineExceeded, point)
	}
}

func TestStressThenShutdownMidFlight(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(20))
	g := loadGolden(t)
	e := openTiny(t, Config{MaxModelLen: 160, KVCacheBytes: 40 * 16 * 1024, MaxNumBatchedTokens: 50})
	end := time.Now().Add(400 * time.Millisecond)
	var wg sync.WaitGroup
	known := func(err error) bool {
		return err == nil || errors.Is(err, llm.ErrStopped) || errors.Is(err, context.Canceled) ||
			errors.Is(err, context.DeadlineExceeded) || errors.Is(err, llm.ErrBlocksInUse)
	}
	for i := range 32 {
		wg.Go(func() {
			for n := i; time.Now().Before(end.Add(50 * time.Millisecond)); n++ {
				p := g.Prompts[n%len(g.Prompts)]
				req := Request{PromptTokenIDs: p.IDs, Sampling: SamplingParams{MaxTokens: 40, IgnoreEOS: true}}
				var err error
				switch i % 5 {
				case 0, 1:
					var outs []Output
					if outs, err = e.Generate(t.Context(), req); err == nil {
						assert.Equal(t, p.Greedy, outs[0].Completions[0].TokenIDs)
					}
				case 2:
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n%7)*time.Millisecond)
					_, err = e.Generate(ctx, req)
					cancel()
				case 3:
					seen := 0
					for d, serr := range e.Stream(t.Context(), req) {
						if err = serr; err != nil {
							break
						}
						for _, id := range d.TokenIDs {
							assert.Equal(t, p.Greedy[seen], id)
							seen++
						}
						if seen > n%45 {
							break
						}
					}
				case 4:
					e.Stats()
					e.Holdings()
					err = e.ResetPrefixCache(t.Context())
				}
				assert.True(t, known(err), "%v", err)
			}
		})
	}
	time.Sleep(time.Until(end))
	require.NoError(t, e.Shutdown(t.Context()))
	wg.Wait()
}
