package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/enginetest/enginetest/engine/internal/pooling"
)

// Pool reduces each request to one vector: an embedding of an engine opened to embed, a number per
// class of one opened to classify. All requests are checked before any is started.
//
// Errors: [*TaskError] when the engine generates or another task is asked for; otherwise those of
// [Engine.Generate]. With an error there are no outputs.
func (e *Engine) Pool(ctx context.Context, reqs ...PoolingRequest) ([]PoolingOutput, error) {
	defer runtime.KeepAlive(e)
	if err := checkContext(ctx); err != nil {
		return nil, err
	}
	rs, err := e.b.startPooling(ctx, reqs)
	if err != nil {
		return nil, err
	}
	whole, err := e.wait(ctx, rs)
	if err != nil {
		return nil, err
	}
	outs := make([]PoolingOutput, len(rs))
	for i, out := range whole {
		outs[i] = PoolingOutput{
			RequestID: out.RequestID, PromptTokenIDs: out.PromptTokenIDs, Data: rs[i].data,
			CachedTokens: out.CachedTokens,
		}
	}
	return outs, nil
}

// PoolingInfo describes how the engine reduces its inputs; the zero value for one that generates.
func (e *Engine) PoolingInfo() PoolingInfo { return e.b.poolingInfo() }

// Embed returns one vector per text, normalised unless the checkpoint says otherwise. [Engine.Pool]
// takes token ids and parameters, too.
func (e *Engine) Embed(ctx context.Context, texts ...string) ([][]float32, error) {
	return e.poolTexts(ctx, TaskEmbed, texts)
}

// Classify returns the probability of each class, one slice per text; PoolingInfo lists the classes.
func (e *Engine) Classify(ctx context.Context, texts ...string) ([][]float32, error) {
	return e.poolTexts(ctx, TaskClassify, texts)
}

func (e *Engine) poolTexts(ctx context.Context, task Task, texts []string) ([][]float32, error) {
	reqs := make([]PoolingRequest, len(texts))
	for i, text := range texts {
		reqs[i] = PoolingRequest{Prompt: text, Pooling: PoolingParams{Task: task}}
	}
	outs, err := e.Pool(ctx, reqs...)
	vectors := make([][]float32, len(outs))
	for i, out := range outs {
		vectors[i] = out.Data
	}
	return vectors, err
}

// Score rates texts against a query: a classifier of one class reads each pair of texts together, an
// engine that embeds compares the directions of their vectors.
func (e *Engine) Score(ctx context.Context, query string, texts ...string) ([]float32, error) {
	pairs := make([]TextPair, len(texts))
	for i, text := range texts {
		pairs[i] = TextPair{Query: query, Text: text}
	}
	outs, err := e.ScorePairs(ctx, "", pairs...)
	scores := make([]float32, len(outs))
	for i, out := range outs {
		scores[i] = out.Data[0]
	}
	return scores, err
}

// ScorePairs is [Engine.Score] for pairs of texts, on behalf of a client: see [Request]. Each output
// has one number, and the tokens of both texts.
func (e *Engine) ScorePairs(ctx context.Context, client string, pairs ...TextPair) ([]PoolingOutput, error) {
	info := e.PoolingInfo()
	if info.Task == TaskClassify && info.Dimensions > 1 {
		cfg := e.Config()
		return nil, &TaskError{
			Verb: "score", Task: TaskClassify, Model: cfg.Model,
			Advice: fmt.Sprintf("it has %d classes, and a score needs a model with one", info.Dimensions),
		}
	}
	if info.Task != TaskClassify {
		return e.scoreVectors(ctx, client, pairs)
	}
	reqs := make([]PoolingRequest, len(pairs))
	for i, p := range pairs {
		reqs[i] = PoolingRequest{
			Prompt: p.Query, Pair: p.Text, Client: client, Pooling: PoolingParams{Task: TaskClassify},
		}
		if p.Text == "" {
			return nil, paramError(fmt.Sprintf("pairs[%d].Text", i), `""`, "a text")
		}
	}
	return e.Pool(ctx, reqs...)
}

// scoreVectors embeds every text once and compares the vectors of each pair.
func (e *Engine) scoreVectors(ctx context.Context, client string, pairs []TextPair) ([]PoolingOutput, error) {
	var reqs []PoolingRequest
	index := map[string]int{}
	for _, p := range pairs {
		for _, text := range []string{p.Query, p.Text} {
			if _, ok := index[text]; !ok {
				index[text] = len(reqs)
				reqs = append(reqs, PoolingRequest{
					Prompt: text, Client: client, Pooling: PoolingParams{Task: TaskEmbed},
				})
			}
		}
	}
	vectors, err := e.Pool(ctx, reqs...)
	if err != nil {
		if refused, ok := errors.AsType[*TaskError](err); ok {
			err = &TaskError{Verb: "score", Task: refused.Task, Model: refused.Model, Advice: refused.Advice}
		}
		return nil, err
	}
	outs := make([]PoolingOutput, len(pairs))
	for i, p := range pairs {
		a, b := &vectors[index[p.Query]], &vectors[index[p.Text]]
		outs[i] = PoolingOutput{
			RequestID:      b.RequestID,
			PromptTokenIDs: append(append([]int32{}, a.PromptTokenIDs...), b.PromptTokenIDs...),
			Data:           []float32{pooling.Cosine(a.Data, b.Data)},
		}
	}
	return outs, nil
}
