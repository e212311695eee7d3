package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/enginetest/enginetest/engine"
)

// speed measures a batch of prompts with one token each, and then decoding: outputs of prompts of
// one token, so that every step is one of decoding and nothing has to be subtracted.
func (o Options) speed(ctx context.Context, e *engine.Engine, batch int, memory *Bandwidth,
	stepBytes int64,
) ([]Result, error) {
	if _, err := e.Generate(ctx, o.requests(batch, o.Prompt, 2, 0)...); err != nil { // pages are touched, caches warm
		return nil, err
	}
	var prefill, decode, floor []float64
	for run := range o.Repeat {
		p, err1 := generate(ctx, e, batch*o.Prompt, o.requests(batch, o.Prompt, 1, run+1))
		d, err2 := generate(ctx, e, batch*o.Output, o.requests(batch, 1, o.Output, run+1))
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		prefill, decode = append(prefill, p), append(decode, d)
		if memory != nil {
			floor = append(floor, float64(batch)*memory.Measure()/float64(stepBytes))
		}
	}
	p := summarize(fmt.Sprintf("prefill %d×%d", batch, o.Prompt), "tok/s", prefill)
	d := summarize(fmt.Sprintf("decode %d×%d", batch, o.Output), "tok/s", decode)
	switch {
	case floor == nil:
	case stepBytes < cacheBytes:
		d.Note = "no floor: the weights may stay in a cache"
	default:
		d.Floor, d.Note = summarize("", "", floor).Median, "all weights read from memory once a step"
	}
	return []Result{p, d}, nil
}

// cacheBytes is more than a share of a last-level cache that one can count on: weights below it
// need not come from memory.
const cacheBytes = 64 << 20

// requests are n prompts of random token ids: reproducible, and different in every run.
func (o Options) requests(n, prompt, output, run int) []engine.Request {
	reqs := make([]engine.Request, n)
	state := uint64(run)*1e9 + 1
	for i := range reqs {
		ids := make([]int32, prompt)
		for j := range ids {
			state = state*6364136223846793005 + 1442695040888963407
			ids[j] = int32(state >> 33 % 200)
		}
		reqs[i] = engine.Request{PromptTokenIDs: ids, Sampling: engine.SamplingParams{
			MaxTokens: output,
			IgnoreEOS: true,
		}}
	}
	return reqs
}

// generate returns how many of the requests' tokens, count of them, come out a second.
func generate(ctx context.Context, e *engine.Engine, count int, reqs []engine.Request) (float64, error) {
	start := time.Now()
	_, err := e.Generate(ctx, reqs...)
	return float64(count) / time.Since(start).Seconds(), err
}
