package engine

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/speculate"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/llm"
)

// Speculative proposes tokens, and has the model verify all of them in one step: where reading the
// weights takes the time of a step, several tokens cost little more than one. The names are vLLM's.
//
// What comes out is what comes out without it: a draft is accepted when it is the token that the
// model's own sampler draws at its place, so greedy and seeded outputs are equal token for token,
// with every parameter of a request. On the CPU only.
type Speculative struct {
	Method string // SpeculativeNGram or SpeculativeDraftModel; "" is the one that the other fields ask for
	Model  string // of SpeculativeDraftModel: folder of a smaller checkpoint with the same vocabulary
	// NumTokens is how many tokens are proposed at most, in [1, 32]; it has no default.
	NumTokens int
	// Of SpeculativeNGram: how many tokens at the end of a text must have come before, and the most
	// that are compared. One that is 0 is the other; both 0 is 5.
	PromptLookupMin, PromptLookupMax int
}

// The methods of Speculative.
const (
	SpeculativeNGram      = "ngram"       // what followed the same tokens earlier in prompt and output
	SpeculativeDraftModel = "draft_model" // what a smaller model takes to be most likely
)

const maxSpecTokens = 32

// resolve fills in defaults, and checks every field.
func (s Speculative) resolve() (Speculative, error) {
	if s == (Speculative{}) {
		return s, nil
	}
	if s.Method == "" {
		s.Method = SpeculativeNGram
		if s.Model != "" {
			s.Method = SpeculativeDraftModel
		}
	}
	if s.NumTokens < 1 || s.NumTokens > maxSpecTokens {
		return s, paramError("Speculative.NumTokens", s.NumTokens, fmt.Sprintf("in [1, %d]", maxSpecTokens))
	}
	switch s.Method {
	case SpeculativeDraftModel:
		return s, s.checkDraftModel()
	case SpeculativeNGram:
		return s.resolveNGram()
	}
	return s, paramError("Speculative.Method", fmt.Sprintf("%q", s.Method), `"ngram" or "draft_model"`)
}

func (s Speculative) checkDraftModel() error {
	if s.Model == "" {
		return paramError("Speculative.Model", `""`, `the folder of a checkpoint with Method "draft_model"`)
	}
	if s.PromptLookupMin != 0 || s.PromptLookupMax != 0 {
		return paramError("Speculative.PromptLookupMax", cmp.Or(s.PromptLookupMax, s.PromptLookupMin),
			`0 with Method "draft_model"`)
	}
	return nil
}

func (s Speculative) resolveNGram() (Speculative, error) {
	const def = 5 // vLLM's
	if s.Model != "" {
		return s, paramError("Speculative.Model", fmt.Sprintf("%q", s.Model), `"" with Method "ngram"`)
	}
	s.PromptLookupMax = cmp.Or(s.PromptLookupMax, s.PromptLookupMin, def)
	s.PromptLookupMin = cmp.Or(s.PromptLookupMin, s.PromptLookupMax)
	if s.PromptLookupMin < 1 {
		return s, paramError("Speculative.PromptLookupMin", s.PromptLookupMin, "≥ 1")
	}
	if s.PromptLookupMax < s.PromptLookupMin {
		return s, paramError("Speculative.PromptLookupMax", s.PromptLookupMax,
			fmt.Sprintf("at least PromptLookupMin (%d)", s.PromptLookupMin))
	}
	return s, nil
}

// checkSpeculative refuses what cannot propose tokens.
func (c *Config) checkSpeculative() error {
	method := c.Speculative.Method
	if method != "" && c.Task != llm.TaskGenerate {
		return paramError("Speculative.Method", fmt.Sprintf("%q", method), fmt.Sprintf(`"" for Task %q`, c.Task))
	}
	return nil
}

// lookahead is for how many tokens after those of a step a sequence needs room: a draft model writes
// the KV cache there.
func (c *Config) lookahead() int {
	if c.Speculative.Method == SpeculativeDraftModel {
		return c.Speculative.NumTokens
	}
	return 0
}

// speculate makes a runner propose tokens, when the configuration says so. It takes the runner over.
func (c *core) speculate(target modelrunner.Runner, vocab, maxPositions int) (_ modelrunner.Runner, err error) {
	spec := &c.cfg.Speculative
	if spec.Method == "" {
		return target, nil
	}
	hook := func(rank int) func() error { return func() error { return c.faults.drafting(rank) } }
	model := target.(modelrunner.SleepingRunner) // each on the CPU is
	if spec.Method == SpeculativeNGram {
		return &speculate.NGram{
			SleepingRunner: model, Hook: hook(0), Tokens: spec.NumTokens, Min: spec.PromptLookupMin,
			Max: spec.PromptLookupMax,
		}, nil
	}
	opened := false
	defer func() { // after a panic too
		if !opened {
			err = errors.Join(err, target.Close())
		}
	}()
	ckpt, err := c.openDraft(vocab, maxPositions)
	if err != nil {
		return nil, fmt.Errorf("draft model: %w", err)
	}
	o := c.cpuOptions()
	o.MaxNumBatchedTokens += c.cfg.MaxNumSeqs // of a prompt's last step also the token that it drew
	o.DraftOf = target
	draft, err := runOnCPU(&c.cfg, ckpt, o, func(rank int) modelrunner.Hooks {
		h := c.faults.hooks(rank)
		h.Forward, h.Sample = hook(rank), nil
		return h
	})
	if err != nil {
		return nil, fmt.Errorf("draft model: %w", err)
	}
	opened = true
	return speculate.NewModel(model, draft.(modelrunner.SleepingRunner), c.cfg.TensorParallel, spec.NumTokens,
		c.cfg.BlockSize), nil
}

// openDraft opens the draft's checkpoint, if it can draft for a model with such a vocabulary.
func (c *core) openDraft(vocab, maxPositions int) (*checkpoint.Checkpoint, error) {
	ckpt, err := checkpoint.Open(c.cfg.Speculative.Model)
	if err != nil {
		return nil, err
	}
	if err := c.checkDraft(&ckpt.Config, vocab, cmp.Or(c.cfg.MaxModelLen, maxPositions)); err != nil {
		return nil, errors.Join(err, ckpt.Close())
	}
	return ckpt, nil
}

func (c *core) checkDraft(draft *checkpoint.Config, vocab, positions int) error {
	var want string
	_, err := modelrunner.Split(*draft, modelrunner.Shard{Size: c.cfg.TensorParallel})
	split, cannot := errors.AsType[*modelrunner.SplitError](err)
	switch {
	case draft.Head != checkpoint.OutputHead || draft.Encoder:
		want = "a checkpoint that generates"
	case draft.VocabSize != vocab:
		want = fmt.Sprintf("one with the model's vocabulary of %d; it has %d", vocab, draft.VocabSize)
	case draft.MaxPositions < positions:
		want = fmt.Sprintf("one with max_position_embeddings of at least %d, or MaxModelLen at most %d", positions,
			draft.MaxPositions)
	case cannot:
		want = fmt.Sprintf("one that %d devices (TensorParallel) can share: %s", split.Size, split.Why())
	default:
		return err
	}
	return paramError("Speculative.Model", fmt.Sprintf("%q", c.cfg.Speculative.Model), want)
}
