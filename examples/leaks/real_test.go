package leaks_test

import (
	"testing"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/leakcheck"
	"github.com/stretchr/testify/require"
)

// served is what a careless server keeps: a callback for every engine that it ever had.
var served []func(id string) bool

// TestRealEngine: the bundled engine, its parts and its memory. Shut down as it should be, nothing
// is left; a method value that someone kept keeps the handle, and not the weights.
func TestRealEngine(t *testing.T) {
	run := func(keep bool) (refs []*leakcheck.Ref) {
		e, err := engine.Open(t.Context(), engine.Config{Model: fixtures.Bundled(), KVCacheBytes: 8 << 20})
		require.NoError(t, err)
		refs = append(refs, leakcheck.Track("engine", e, soon, leakcheck.DeviceMemory(e)))
		for name, part := range e.Parts() {
			refs = append(refs, leakcheck.Track(name, part, soon))
		}
		_, err = e.Generate(t.Context(), engine.Request{Prompt: "2+3=", Sampling: engine.SamplingParams{MaxTokens: 2}})
		require.NoError(t, err)
		if keep {
			served = append(served, e.Abort)
		}
		require.NoError(t, e.Shutdown(t.Context()))
		require.NoError(t, leakcheck.Freed(t.Context(), e, soon))
		return refs
	}
	mustSay(t, leakcheck.Released(t.Context(), run(true)...), `tracked as "engine"`, "leaks_test.served",
		"method value engine.(*Engine).Abort-fm")
	served = nil

	require.NoError(t, leakcheck.Released(t.Context(), run(false)...))
}
