package harness

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/verdict"
)

// Generate answers every request, in order. Any error fails the test.
func (r *Runner) Generate(reqs ...llm.Request) []llm.Output {
	r.t.Helper()
	outs, err := r.TryGenerate(reqs...)
	if err != nil {
		verdict.Record(r.t, verdictsOf(err)...)
		r.t.Fatalf("%s: generate: %v", r.pkg, err)
	}
	return outs
}

// TryGenerate is Generate for a test that expects an error; a stopped engine gives llm.ErrStopped.
// It never touches the test, so that a fuzz target may call it on the Runner of its *testing.F,
// whose methods are forbidden there.
func (r *Runner) TryGenerate(reqs ...llm.Request) (outs []llm.Output, err error) {
	e := r.fixture.Engine()
	if e == nil {
		return nil, r.stopped()
	}
	outs, err = call(r, e, func(ctx context.Context) ([]llm.Output, error) { return e.Generate(ctx, reqs...) })
	switch bare := slices.IndexFunc(outs, func(o llm.Output) bool { return len(o.Completions) == 0 }); {
	case err != nil:
	case len(outs) != len(reqs):
		err = fmt.Errorf("%T.Generate gave %d outputs for %d requests", e, len(outs), len(reqs))
	case bare >= 0:
		err = fmt.Errorf("%T.Generate gave no completion for request %d of %d", e, bare+1, len(reqs))
	}
	return outs, err
}

// GenerateWith answers one text prompt.
func (r *Runner) GenerateWith(prompt string, params llm.SamplingParams) llm.Output {
	r.t.Helper()
	return r.Generate(llm.Request{Prompt: prompt, Sampling: params})[0]
}

// GenerateGreedy continues a prompt with the likeliest tokens, at most maxTokens of them.
func (r *Runner) GenerateGreedy(prompt string, maxTokens int) llm.Completion {
	r.t.Helper()
	return r.GenerateWith(prompt, llm.SamplingParams{MaxTokens: maxTokens}).Completions[0]
}

// GenerateGreedyLogprobs is GenerateGreedy with, for each token, its log-probability and those of
// the k likeliest.
func (r *Runner) GenerateGreedyLogprobs(prompt string, maxTokens, k int) llm.Completion {
	r.t.Helper()
	out := r.GenerateWith(prompt, llm.SamplingParams{MaxTokens: maxTokens, Logprobs: &k})
	r.needLogprobs(out, k, false)
	return out.Completions[0]
}

// GenerateGreedyLogprobsLimit continues each prompt with the likeliest tokens, all in one batch, and
// returns for each token the k likeliest, best first and no more than these: what two engines can
// be compared by, whatever else each of them returns.
func (r *Runner) GenerateGreedyLogprobsLimit(prompts []string, maxTokens, k int) []llm.Completion {
	r.t.Helper()
	if k < 1 {
		r.t.Fatalf("%s: generate: a limit of %d log-probabilities per token, must be at least 1", r.pkg, k)
	}
	reqs := make([]llm.Request, len(prompts))
	for i, p := range prompts {
		reqs[i] = llm.Request{Prompt: p, Sampling: llm.SamplingParams{MaxTokens: maxTokens, Logprobs: &k}}
	}
	done := make([]llm.Completion, len(prompts))
	for i, out := range r.Generate(reqs...) {
		r.needLogprobs(out, k, false)
		done[i] = out.Completions[0]
		for at, lps := range done[i].Logprobs {
			lps = slices.Clone(lps)
			slices.SortStableFunc(lps, func(a, b llm.Logprob) int { return cmp.Compare(b.Logprob, a.Logprob) })
			if len(lps) < k {
				r.t.Fatalf("%s: generate: %T.Generate returned %d log-probabilities for token %d of prompt %d, want the %d likeliest",
					r.pkg, r.fixture.Engine(), len(lps), at, i, k)
			}
			done[i].Logprobs[at] = lps[:k]
		}
	}
	return done
}

// GenerateWithLogprobs is GenerateWith, with the k likeliest tokens' log-probabilities for the
// prompt and for the output.
func (r *Runner) GenerateWithLogprobs(prompt string, params llm.SamplingParams, k int) llm.Output {
	r.t.Helper()
	params.Logprobs, params.PromptLogprobs = &k, &k
	out := r.GenerateWith(prompt, params)
	r.needLogprobs(out, k, true)
	return out
}

// needLogprobs fails the test when an engine left out the log-probabilities that it was asked for:
// a comparison of none with none passes.
func (r *Runner) needLogprobs(out llm.Output, k int, prompt bool) {
	r.t.Helper()
	for i, c := range out.Completions {
		tokens := max(len(c.TokenIDs), min(len(c.Text), 1)) // an engine may return text alone
		if len(c.Logprobs) < tokens {
			r.t.Fatalf("%s: generate: %T.Generate returned log-probabilities for %d of %d token(s) of completion %d (asked for the %d likeliest of each)",
				r.pkg, r.fixture.Engine(), len(c.Logprobs), tokens, i, k)
		}
	}
	if n := len(out.PromptTokenIDs); prompt && len(out.PromptLogprobs) < max(n, min(len(out.Prompt), 1)) {
		r.t.Fatalf("%s: generate: %T.Generate returned log-probabilities for %d of %d token(s) of the prompt (asked for the %d likeliest of each)",
			r.pkg, r.fixture.Engine(), len(out.PromptLogprobs), n, k)
	}
}

// Embed returns one vector a text. The engine must be an [Embedder].
func (r *Runner) Embed(texts ...string) [][]float32 {
	r.t.Helper()
	e := capability[Embedder](r, "embed")
	return must(r, "embed", func(ctx context.Context) ([][]float32, error) { return e.Embed(ctx, texts...) })
}

// Classify returns the probability of each class, one slice a text. The engine must be a
// [Classifier].
func (r *Runner) Classify(texts ...string) [][]float32 {
	r.t.Helper()
	c := capability[Classifier](r, "classify")
	return must(r, "classify", func(ctx context.Context) ([][]float32, error) { return c.Classify(ctx, texts...) })
}

// Score rates texts against a query. The engine must be a [Scorer].
func (r *Runner) Score(query string, texts ...string) []float32 {
	r.t.Helper()
	s := capability[Scorer](r, "score")
	return must(r, "score", func(ctx context.Context) ([]float32, error) { return s.Score(ctx, query, texts...) })
}

// Chat answers a conversation. The engine must be a [Chatter].
func (r *Runner) Chat(messages []llm.Message, params llm.SamplingParams) llm.Output {
	r.t.Helper()
	c := capability[Chatter](r, "chat")
	return must(r, "chat", func(ctx context.Context) (llm.Output, error) { return c.Chat(ctx, messages, params) })
}

// ResetPrefixCache forgets cached prompts. The engine must be a [PrefixCacheResetter].
func (r *Runner) ResetPrefixCache() {
	r.t.Helper()
	c := capability[PrefixCacheResetter](r, "reset a prefix cache")
	must(r, "reset prefix cache", func(ctx context.Context) (struct{}, error) {
		return struct{}{},
			c.ResetPrefixCache(ctx)
	})
}

// Sleep releases device memory; level 1 keeps the weights on the host, level 2 keeps nothing. The
// engine must be a [Sleeper].
func (r *Runner) Sleep(level int) {
	r.t.Helper()
	s := capability[Sleeper](r, "sleep")
	must(r, "sleep", func(ctx context.Context) (struct{}, error) { return struct{}{}, s.Sleep(ctx, level) })
}

// Wake brings a sleeping engine back, whole or the parts that tags name ("weights", "kv_cache").
func (r *Runner) Wake(tags ...string) {
	r.t.Helper()
	s := capability[Sleeper](r, "wake")
	must(r, "wake", func(ctx context.Context) (struct{}, error) { return struct{}{}, s.Wake(ctx, tags...) })
}

// must calls the engine under the fixture's labels; an error fails the test.
func must[T any](r *Runner, verb string, method func(context.Context) (T, error)) T {
	r.t.Helper()
	v, err := call(r, r.fixture.Engine(), method)
	if err != nil {
		r.t.Fatalf("%s: %s: %v", r.pkg, verb, err)
	}
	return v
}
