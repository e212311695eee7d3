package conformance

import (
	"fmt"
	"math"

	"github.com/enginetest/enginetest/llm"
)

// fourModes draws one token with a temperature, a top-k and a bias, and derives from its raw
// log-probabilities what the other three modes must say of it.
func fourModes(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	q, raw, err := c.whole(l)
	if err != nil {
		return err
	}
	const temperature, k, bias = 1.6, 5, 3
	biased := raw[k+2].id // it comes among the five likeliest, or not: the logits say
	q.Sampling = llm.SamplingParams{
		MaxTokens: 1, Temperature: temperature, TopK: k, Seed: new(int64(1)),
		LogitBias: map[int32]float64{biased: bias}, Logprobs: new(-1),
	}
	values := map[llm.LogprobsMode]map[int32]float64{}
	for _, mode := range []llm.LogprobsMode{
		llm.RawLogprobs, llm.RawLogits, llm.ProcessedLogits, llm.ProcessedLogprobs,
	} {
		q.Sampling.LogprobsMode = mode
		x, err := l.one(c, q)
		if err == nil {
			err = identified(x)
		}
		if err != nil {
			return err
		}
		values[mode] = map[int32]float64{}
		for _, lp := range x.Logprobs[0] {
			values[mode][lp.TokenID] = float64(lp.Logprob)
		}
		if drawn := x.TokenIDs[0]; math.IsInf(values[mode][drawn], -1) {
			return fmt.Errorf("%s: token id %d was drawn and has no chance\n%s", mode, drawn, requests([]llm.Request{q}))
		}
	}
	if text := modesDiffer(values, biased, bias, temperature, k); text != "" {
		return fmt.Errorf("%s\n%s\nand with the other modes", text, requests([]llm.Request{q}))
	}
	return nil
}

// modesDiffer says where the values of the four modes don't fit each other.
func modesDiffer(values map[llm.LogprobsMode]map[int32]float64, biased int32, bias, temperature float64, k int) string {
	const near = 1e-3
	logits := values[llm.RawLogits]
	if d := notNormalized(logits, values[llm.RawLogprobs]); d > near {
		return fmt.Sprintf("raw_logprobs are not raw_logits, normalized: they are %g nats apart", d)
	}
	processed := values[llm.ProcessedLogits]
	if d := notNormalized(processed, values[llm.ProcessedLogprobs]); d > near {
		return fmt.Sprintf("processed_logprobs are not processed_logits, normalized: they are %g nats apart", d)
	}
	kept := 0
	for id, got := range processed {
		if math.IsInf(got, -1) {
			continue
		}
		kept++
		want := logits[id] / temperature
		if id == biased {
			want = (logits[id] + bias) / temperature
		}
		if math.Abs(got-want) > near {
			return fmt.Sprintf("processed_logits have %g for token id %d, want %g", got, id, want)
		}
	}
	if kept != k {
		return fmt.Sprintf("processed_logits have %d tokens that could be drawn, want %d", kept, k)
	}
	return ""
}

// notNormalized is the largest distance of log-probabilities from those that logits make.
func notNormalized(logits, logprobs map[int32]float64) (most float64) {
	top := math.Inf(-1)
	for _, z := range logits {
		top = max(top, z)
	}
	sum := 0.0
	for _, z := range logits {
		sum += math.Exp(z - top)
	}
	for id, z := range logits {
		want, got := z-top-math.Log(sum), logprobs[id]
		if math.IsInf(want, -1) != math.IsInf(got, -1) {
			return math.Inf(1)
		}
		if !math.IsInf(want, -1) {
			most = max(most, math.Abs(want-got))
		}
	}
	return most
}
