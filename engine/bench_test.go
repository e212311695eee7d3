package engine

import (
	"fmt"
	"testing"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/stretchr/testify/require"
)

// freeRunner costs nothing: what is left is the engine's own work.
type freeRunner struct {
	modelrunner.Runner
	results []modelrunner.SeqResult
}

func (r *freeRunner) KVBytesPerBlock() int64                     { return 1024 }
func (r *freeRunner) FreeMemory() (free, total int64, err error) { return 1 << 30, 1 << 30, nil }
func (r *freeRunner) AllocateKV(int) error                       { return nil }
func (r *freeRunner) Close() error                               { return nil }
func (r *freeRunner) Execute(b *modelrunner.Batch) ([]modelrunner.SeqResult, error) {
	r.results = r.results[:0]
	for range b.Seqs {
		r.results = append(r.results, modelrunner.SeqResult{Token: 5})
	}
	return r.results, nil
}

// BenchmarkOverhead is what the engine adds to each step of this many sequences: scheduling,
// output, bookkeeping.
func BenchmarkOverhead(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprintf("seqs=%d", n), func(b *testing.B) {
			e, err := open(b.Context(), Config{Model: "free", Logger: quiet}, func(c *core) (m model, err error) {
				c.cfg, err = c.cfg.resolveModel(4096)
				return model{runner: &freeRunner{}, maxPositions: 4096, limits: limits{vocab: 100}}, err
			})
			require.NoError(b, err)
			reqs := make([]Request, n)
			for i := range reqs {
				reqs[i] = Request{PromptTokenIDs: ids(16, i), Sampling: SamplingParams{MaxTokens: 1000}}
			}
			b.ReportAllocs()
			for b.Loop() {
				_, err := e.Generate(b.Context(), reqs...)
				require.NoError(b, err)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(e.Stats().Steps), "ns/step")
			require.NoError(b, e.Shutdown(b.Context()))
		})
	}
}
