package leaks_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/enginetest/enginetest/leakcheck"
	"github.com/enginetest/enginetest/ledger"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// soon keeps these tests quick: nothing here goes away by waiting.
var soon = leakcheck.Patience(10 * time.Millisecond)

// mustSay checks that the leak was found and that the message names the culprit; then it shows the
// message.
func mustSay(t *testing.T, err error, texts ...string) {
	t.Helper()
	require.Error(t, err)
	t.Logf("what a developer sees:\n%v", err)
	for _, s := range texts {
		assert.ErrorContains(t, err, s)
	}
}

// TestMethodValueInCache: vllm#38503. A cache answers "does this method take keyword arguments?",
// keyed by the bound method. Every runner that ever asked stays, with its model.
func TestMethodValueInCache(t *testing.T) {
	l := ledger.New(false)
	run := func(cache func(r *ModelRunner)) *leakcheck.Ref {
		r := &ModelRunner{load(l, "llama")}
		cache(r)
		return leakcheck.Track("modelrunner/0", r, soon, leakcheck.DeviceMemory(l, "weights"))
	}
	leaked := run(func(r *ModelRunner) { supportsKwargs[&bound{r.Forward}] = true })
	mustSay(t, leaked.Released(t.Context()),
		"7.0 GiB of device memory (owner weights)", "leaks_test.supportsKwargs", "method value", "(*ModelRunner).Forward-fm", "key it by the method expression")

	clear(supportsKwargs)
	fixed := run(func(*ModelRunner) { supportsByName["(*ModelRunner).Forward"] = true })
	require.NoError(t, fixed.Released(t.Context()))
}

// TestModelStateKeepsModel: vllm#41297. The shutdown drops the model, but the model's state and the
// speculator still point to it, and the user still holds the engine.
func TestModelStateKeepsModel(t *testing.T) {
	l := ledger.New(true)
	e := open(l)
	model := leakcheck.Track("model", e.model, soon, leakcheck.DeviceMemory(l, "weights"))
	e.shutdownModelOnly()
	mustSay(t, model.Released(t.Context()), "7.0 GiB of device memory (owner weights)", "local e",
		".model  *leaks_test.Model")
	mustSay(t, leakcheck.Freed(t.Context(), l, soon), "not given back by owner weights", "leaks_test.load")
	runtime.KeepAlive(e)

	guard := leakcheck.Guard(t) // the fixed twin: the test fails if this finds anything
	l = ledger.New(true)
	e = open(l)
	guard.Track("model", e.model)
	guard.Buffers(l)
	e.shutdown()
	runtime.KeepAlive(e)
}

// TestBlockHasher: vllm#34183. Finished requests are kept by the closure that hashes their next
// block; their payloads are large. Nothing is ever freed twice or lost, it only grows: 5 rounds are
// enough to tell.
func TestBlockHasher(t *testing.T) {
	_, err := leakcheck.MeasureGrowth(t.Context(), 5, serve((*PrefixCache).addClosure))
	mustSay(t, err, "Go heap: 4.0 MiB more with every round", "leaks_test.go", ".next[", "captured r", ".payload")

	leakcheck.Growth(t, 5, serve((*PrefixCache).addValue))
}

// TestErrorKeepsEngine: the in-process failure test that vllm#28953 had to disable. A client keeps
// the errors of its requests; one of them keeps the engine.
func TestErrorKeepsEngine(t *testing.T) {
	l := ledger.New(false)
	fail := func(keep bool) *leakcheck.Ref {
		e := open(l)
		results = append(results, e.generate(keep))
		ref := leakcheck.Track("engine", e, soon)
		e.shutdown()
		return ref
	}
	mustSay(t, fail(true).Released(t.Context()), "leaks_test.results", "*leaks_test.stepError",
		".engine  *leaks_test.Engine", "an error keeps what it was made with")

	results = nil
	require.NoError(t, fail(false).Released(t.Context()))
	require.ErrorIs(t, results[0], errOutOfMemory)
}

// TestProcessGroup: vllm#43023. The engine is gone, the process group that connected its workers is
// not: goroutines and a listening port.
func TestProcessGroup(t *testing.T) {
	host, err := leakcheck.Snapshot()
	require.NoError(t, err)
	scope := leakcheck.NewScope("engine", soon)
	var g *ProcessGroup
	scope.Do(func() { g, err = newProcessGroup(2) })
	require.NoError(t, err)
	mustSay(t, scope.Gone(context.Background()), "2 of 2 goroutine(s) still running", "[chan receive]",
		"(*ProcessGroup).heartbeat", "created by")
	mustSay(t, host.Restored(context.Background(), soon), "tcp "+g.store.Addr().String()+" listening")

	require.NoError(t, g.destroy())
	require.NoError(t, scope.Gone(context.Background()))
	require.NoError(t, host.Restored(context.Background()))
}
