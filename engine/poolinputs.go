package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/pooling"
	"github.com/enginetest/enginetest/engine/internal/scheduler"
	"github.com/enginetest/enginetest/engine/internal/tokenizer"
	"github.com/enginetest/enginetest/llm"
)

// poolRules are a pooling request's parameters, resolved.
type poolRules struct {
	dimensions int // of an embedding
	activation pooling.Activation
	types      []int32 // token types; nil: all are 0
}

func (p *inputProcessor) poolingInfo() llm.PoolingInfo { return p.pooling }

// startPooling checks requests of a pooling model and hands them to the loop.
func (in *intake) startPooling(ctx context.Context, reqs []llm.PoolingRequest) ([]*request, error) {
	return in.poolFor(ctx, reqs, func(int, *request) {})
}

// poolFor is startPooling for someone who wants to see each request before the loop does.
func (in *intake) poolFor(
	ctx context.Context, reqs []llm.PoolingRequest, each func(int, *request),
) ([]*request, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("engine: not started: %w", ended(ctx))
	}
	plain := make([]Request, len(reqs)) // what is counted and named
	for i, q := range reqs {
		plain[i] = Request{ID: q.ID, Prompt: q.Prompt + q.Pair, Client: q.Client}
	}
	own := new(callClient)
	if err := in.precheck(plain, own); err != nil {
		return nil, err
	}
	ks := make([]*checked, len(reqs))
	for i := range reqs {
		k, err := in.inputs.checkPooling(ctx, &reqs[i])
		if err != nil {
			return nil, ofRequest(err, reqs[i].ID, i, len(reqs))
		}
		k.req = &plain[i]
		ks[i] = k
	}
	return in.take(ks, own, false, each)
}

// ofRequest says which request an error is of.
func ofRequest(err error, id string, i, n int) error {
	switch {
	case id != "":
		return fmt.Errorf("request %s: %w", id, err)
	case n > 1:
		return fmt.Errorf("request %d of %d: %w", i+1, n, err)
	}
	return err
}

// checkPooling resolves one request.
func (p *inputProcessor) checkPooling(ctx context.Context, q *llm.PoolingRequest) (*checked, error) {
	p.life.mu.Lock()
	tok, refused := p.tok, p.life.refusal()
	p.life.mu.Unlock()
	if refused != nil {
		return nil, refused
	}
	rules, err := p.poolRules(q)
	if err != nil {
		return nil, err
	}
	tokens, err := p.poolTokens(ctx, q, tok)
	if err != nil {
		return nil, err
	}
	l := limits{vocab: p.vocab, tok: tok, maxLen: p.cfg.MaxModelLen}
	if err := checkTokens(&Request{PromptTokenIDs: q.PromptTokenIDs}, tokens, l); err != nil {
		return nil, err
	}
	if rules.types, err = p.checkTypes(q, len(tokens)); err != nil {
		return nil, err
	}
	return &checked{tokens: tokens, rules: poolingRules, pool: rules}, nil
}

// poolingRules are those of a request that generates nothing.
var poolingRules = rules{n: 1, logprobs: -1, prompt: -1}

// poolRules checks a request's parameters.
func (p *inputProcessor) poolRules(q *llm.PoolingRequest) (*poolRules, error) {
	info, params := &p.pooling, &q.Pooling
	task := params.Task
	if task == "" {
		task = p.cfg.Task
	}
	if p.cfg.Task == llm.TaskGenerate || task != p.cfg.Task {
		if task == llm.TaskGenerate {
			task = llm.TaskEmbed
		}
		return nil, p.cfg.taskError(string(task), task)
	}
	r := &poolRules{activation: pooling.None}
	if n := params.Dimensions; n != 0 {
		if task != llm.TaskEmbed {
			return nil, paramError("Dimensions", n, "0 for classes: only an embedding can be cut")
		}
		if n < 0 || n > info.Dimensions {
			return nil, paramError("Dimensions", n, fmt.Sprintf("in [1, %d], or 0 for all", info.Dimensions))
		}
		r.dimensions = n
	}
	on := task == llm.TaskClassify || info.Normalized
	if params.UseActivation != nil {
		on = *params.UseActivation
	}
	switch {
	case on && task == llm.TaskEmbed:
		r.activation = pooling.Normalize
	case on:
		r.activation = pooling.Activation(info.Activation)
	}
	return r, nil
}

// poolTokens returns the tokens of an input. A classifier of a decoder reads the last token that is
// no padding, as transformers has it: nothing that follows matters, and it is left out.
func (p *inputProcessor) poolTokens(
	ctx context.Context, q *llm.PoolingRequest, tok *tokenizer.Tokenizer,
) ([]int32, error) {
	most := p.cfg.MaxModelLen
	tokens := q.PromptTokenIDs
	if tokens == nil {
		if tok == nil {
			return nil, fmt.Errorf("%w: %s; a text needs one, PromptTokenIDs do not", llm.ErrNoTokenizer, p.whyNoTokenizer())
		}
		var err error
		if q.Pair == "" {
			tokens, err = tok.EncodeAtMost(ctx, q.Prompt, true, most)
		} else {
			tokens, err = tok.EncodePairAtMost(ctx, q.Prompt, q.Pair, most)
		}
		long, tooLong := errors.AsType[*tokenizer.TooLongError](err)
		switch {
		case tooLong:
			return nil, inputTooBig(fmt.Sprintf("at least %d", long.AtLeast), most)
		case errors.Is(err, tokenizer.ErrNoPairs):
			return nil, paramError("Pair", "a second text", `"" with this checkpoint: `+err.Error())
		case err != nil:
			return nil, fmt.Errorf("engine: not started: %w", ended(ctx))
		}
	} else if q.Pair != "" {
		return nil, paramError("Pair", "a second text", `"" with PromptTokenIDs`)
	}
	if len(tokens) == 0 {
		return nil, paramError("the prompt", "empty", "at least one token")
	}
	if len(tokens) > most {
		return nil, inputTooBig(strconv.Itoa(len(tokens)), most)
	}
	if p.cfg.Task == llm.TaskClassify && p.pooling.Pooling == PoolingLast {
		for len(tokens) > 1 && tokens[len(tokens)-1] == p.padTokenID {
			tokens = tokens[:len(tokens)-1]
		}
	}
	return tokens, nil
}

func inputTooBig(tokens string, most int) error {
	return fmt.Errorf("%w: %s tokens, at most %d with MaxModelLen %d", llm.ErrPromptTooBig, tokens, most, most)
}

// checkTypes checks the token types of n tokens.
func (p *inputProcessor) checkTypes(q *llm.PoolingRequest, n int) ([]int32, error) {
	types := q.TokenTypeIDs
	switch {
	case types == nil:
		return nil, nil
	case q.PromptTokenIDs == nil:
		return nil, paramError("TokenTypeIDs", fmt.Sprintf("a list of %d", len(types)), "left out with a text")
	case len(types) != len(q.PromptTokenIDs):
		return nil, paramError("TokenTypeIDs", fmt.Sprintf("a list of %d", len(types)),
			fmt.Sprintf("as long as PromptTokenIDs (%d)", len(q.PromptTokenIDs)))
	case p.tokenTypes == 0:
		return nil, paramError("TokenTypeIDs", fmt.Sprintf("a list of %d", len(types)),
			"left out: the model tells no segments apart")
	}
	for i, t := range types {
		if t < 0 || int(t) >= p.tokenTypes {
			return nil, paramError(fmt.Sprintf("TokenTypeIDs[%d]", i), t, fmt.Sprintf("in [0, %d)", p.tokenTypes))
		}
	}
	return slices.Clone(types[:n]), nil
}

// unreadTokenizer says why an encoder goes without the tokenizer.json that it has, if that is only
// of another kind.
func unreadTokenizer(path string, err error) (why string, _ error) {
	var f struct{ Model struct{ Type string } }
	data, readErr := os.ReadFile(path)
	if readErr != nil || json.Unmarshal(data, &f) != nil {
		return "", err
	}
	switch f.Model.Type {
	case "WordPiece", "Unigram", "WordLevel":
		return fmt.Sprintf("%s is a %s, which the engine does not read", path, f.Model.Type), nil
	}
	return "", err
}

// usePooling makes the one sequence of a request that pools.
func (r *request) usePooling(k *checked) {
	r.pool, r.unseeded = k.pool, false
	p := &completion{req: r}
	p.seq = scheduler.Seq{
		Tokens: slices.Clone(k.tokens), PromptLen: len(k.tokens), MaxLen: len(k.tokens), PromptLogprobs: -1,
		Client: r.client, Owner: p, Pool: true, TokenTypes: k.pool.types,
	}
	r.seqs = []*completion{p}
}

// pooled takes up what the model made of a request.
func (r *request) pooled(x []float32) {
	if n := r.pool.dimensions; n > 0 {
		x = slices.Clip(x[:n])
	}
	r.pool.activation.Apply(x)
	r.data = x
}

// profilePooling runs one forward pass of a model that pools.
func (l *stepLoop) profilePooling(b *modelrunner.Batch) error {
	res, err := l.runner.Execute(b)
	if err != nil {
		return err
	}
	if len(res) != 1 {
		return fmt.Errorf("the runner gave %d results for one sequence", len(res))
	}
	for _, v := range res[0].Pooled {
		if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
			return &CheckpointError{
				File: l.cfg.Model, Reason: "its weights make numbers that are not finite of a prompt of zeros",
				Want: "finite weights",
			}
		}
	}
	return res[0].Err
}
