//go:build linux

package engine_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/stretchr/testify/require"
)

// BenchmarkStreaming compares 32 streams from a core in this process with 32 from one in a child, in turns, so that whatever else the machine does
// meets both. "child/in-process" is the ratio of tokens per second, the median over the rounds; "best/best" that of the best rounds, which a busy
// machine disturbs least.
func BenchmarkStreaming(b *testing.B) {
	const streams, tokens = 32, 32
	var engines [2]*engine.Engine
	for i, core := range []engine.Core{engine.InProcess, engine.ChildProcess} {
		e, err := engine.Open(b.Context(), engine.Config{Model: fixtures.Bundled(), Device: "cpu", Core: core, DisablePrefixCache: true})
		require.NoError(b, err)
		defer func() { require.NoError(b, e.Shutdown(context.Background())) }()
		engines[i] = e
	}
	round := func(e *engine.Engine) float64 {
		began := time.Now()
		var wg sync.WaitGroup
		for range streams {
			wg.Go(func() {
				n := 0
				for d, err := range e.Stream(b.Context(), engine.Request{
					Prompt: "The lighthouse", Sampling: engine.SamplingParams{MaxTokens: tokens, IgnoreEOS: true},
				}) {
					if err != nil {
						b.Error(err)
					}
					n += len(d.TokenIDs)
				}
				if n != tokens {
					b.Errorf("%d tokens", n)
				}
			})
		}
		wg.Wait()
		return streams * tokens / time.Since(began).Seconds()
	}
	round(engines[0])
	round(engines[1])
	var rates [2][]float64
	var ratios []float64
	for i := 0; b.Loop(); i++ {
		var now [2]float64
		for k := range engines {
			k ^= i & 1 // each is first in every other round
			now[k] = round(engines[k])
			rates[k] = append(rates[k], now[k])
		}
		ratios = append(ratios, now[1]/now[0])
	}
	b.ReportMetric(median(rates[0]), "in-process-tok/s")
	b.ReportMetric(median(rates[1]), "child-tok/s")
	b.ReportMetric(median(ratios), "child/in-process")
	b.ReportMetric(slices.Max(rates[1])/slices.Max(rates[0]), "best/best")
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
