//go:build linux

package engine_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/stretchr/testify/require"
)

// BenchmarkStreaming compares streams from a core in this process with streams from one in a child.
// The two take turns, so that whatever else the machine does meets both; each metric is the median
// over the rounds of child ÷ in-process:
//
//	tok/s-ratio   tokens per second
//	best-ratio    of the best round of each, which a busy machine disturbs least
//	gap50-, gap99-ratio   the time between two tokens of a stream: its median and its 99th percentile
func BenchmarkStreaming(b *testing.B) {
	medium := fixtures.Spec{Hidden: 512, Layers: 8, Heads: 8, Intermediate: 1408, Vocab: 8192} // 31 million parameters
	for _, r := range []struct {
		model            string
		threads, streams int
	}{
		{"bundled", 2, 32}, {"bundled", 1, 32}, {"bundled", 2, 8}, {"bundled", 2, 1}, {"31M", 2, 32}, {"20M", 2, 1},
	} {
		b.Run(fmt.Sprintf("model=%s/threads=%d/streams=%d", r.model, r.threads, r.streams), func(b *testing.B) {
			path := fixtures.Bundled()
			if r.model != "bundled" {
				path = fixtures.Checkpoint(b, medium)
			}
			compareStreaming(b, engine.Config{Model: path, Device: "cpu", Threads: r.threads, DisablePrefixCache: true},
				r.streams)
		})
	}
}

func compareStreaming(b *testing.B, cfg engine.Config, streams int) {
	b.Helper()
	var engines [2]*engine.Engine
	for i, core := range []engine.Core{engine.InProcess, engine.ChildProcess} {
		cfg.Core = core
		e, err := engine.Open(b.Context(), cfg)
		require.NoError(b, err)
		defer func() { require.NoError(b, e.Shutdown(context.Background())) }()
		streamRound(b, e, streams) // warm
		engines[i] = e
	}
	var rates [2][]float64
	var ratio, gap50, gap99 []float64
	for i := 0; b.Loop(); i++ {
		var now [2]streamed
		for k := range engines {
			k ^= i & 1 // each is first in every other round
			now[k] = streamRound(b, engines[k], streams)
			rates[k] = append(rates[k], now[k].rate)
		}
		ratio = append(ratio, now[1].rate/now[0].rate)
		gap50 = append(gap50, now[1].gap(.5)/now[0].gap(.5))
		gap99 = append(gap99, now[1].gap(.99)/now[0].gap(.99))
	}
	b.ReportMetric(median(rates[0]), "in-process-tok/s")
	b.ReportMetric(median(ratio), "tok/s-ratio")
	b.ReportMetric(slices.Max(rates[1])/slices.Max(rates[0]), "best-ratio")
	b.ReportMetric(median(gap50), "gap50-ratio")
	b.ReportMetric(median(gap99), "gap99-ratio")
}

type streamed struct {
	rate float64   // tokens per second
	gaps []float64 // seconds from one token of a stream to its next, in order of size
}

func (s streamed) gap(quantile float64) float64 { return s.gaps[int(quantile*float64(len(s.gaps)-1))] }

// streamRound starts this many streams at once and reads them to their ends.
func streamRound(b *testing.B, e *engine.Engine, streams int) streamed {
	b.Helper()
	const tokens = 128
	began := time.Now()
	gaps := make([][]float64, streams)
	var wg sync.WaitGroup
	for i := range streams {
		wg.Go(func() {
			n, last := 0, time.Time{}
			for d, err := range e.Stream(b.Context(), engine.Request{
				Prompt: "The lighthouse", PromptTokenIDs: []int32{5, 6, 7, 8},
				Sampling: engine.SamplingParams{MaxTokens: tokens, IgnoreEOS: true},
			}) {
				if err != nil {
					b.Error(err)
				}
				now := time.Now()
				if n > 0 {
					gaps[i] = append(gaps[i], now.Sub(last).Seconds())
				}
				n, last = n+len(d.TokenIDs), now
			}
			if n != tokens {
				b.Errorf("%d tokens", n)
			}
		})
	}
	wg.Wait()
	out := streamed{rate: float64(streams*tokens) / time.Since(began).Seconds(), gaps: slices.Concat(gaps...)}
	slices.Sort(out.gaps)
	return out
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
