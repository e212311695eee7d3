package server_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/leakcheck"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/server"
)

// TestGrowthOfServers: servers whose caches have filled up and turn over don't grow, over 50 rounds
// of prompts that are all different: `enginetest serve` with its prefix cache and KV offload, and
// llama-server with its prompt cache. The caches are small, so that they fill up in the warm-up.
func TestGrowthOfServers(t *testing.T) {
	if os.Getenv("ENGINETEST_LONG") == "" {
		t.Skip("ENGINETEST_LONG=1 runs it: 50 rounds each of real servers")
	}
	for _, row := range []struct {
		name string
		open func(t *testing.T) server.Opener
	}{
		{"enginetest serve", func(t *testing.T) server.Opener {
			reals[0].open(t) // builds it
			return server.Enginetest("--kv-cache-bytes", "2097152", "--offload-bytes", "2097152")
		}},
		{"llama-server with its prompt cache", func(t *testing.T) server.Opener {
			installed(t, "llama-server")
			return server.LlamaCpp(bundledGGUF(t), "--parallel", "2", "--ctx-size", "1024", "--threads", "1",
				"--threads-batch", "1", "--cache-ram", "1")
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := harness.Start(t, row.open(t), harness.WithoutDeviceMemory("these servers use the CPU"))
			pids := r.Engine().(harness.ProcessLister).PIDs()
			require.NotEmpty(t, pids)
			n := 0
			rep, err := leakcheck.MeasureGrowthOf(t.Context(), leakcheck.Tree(pids[0]), 50, func(int) {
				for range 8 {
					n++
					prompt := fmt.Sprintf("%d: Question %d of many, %d+%d=", n*7919, n, n%10, n%7)
					out := r.GenerateWith(prompt, llm.SamplingParams{MaxTokens: 16})
					require.NotEmpty(t, out.Completions)
				}
			})
			require.NotNil(t, rep)
			t.Logf("\n%s", rep.Table())
			assert.NoError(t, err)
		})
	}
}
