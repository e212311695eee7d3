package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/enginetest/enginetest/engine/internal/pooling"
	"github.com/enginetest/enginetest/llm"
)

// Pool reduces each request to one vector: an embedding of an engine opened to embed, a number per
// class of one opened to classify. All requests are checked before any is started.
//
// Errors: [*llm.TaskError] when the engine generates or another task is asked for; otherwise those
// of [Engine.Generate]. With an error there are no outputs.
func (e *Engine) Pool(ctx context.Context, reqs ...llm.PoolingRequest) ([]llm.PoolingOutput, error) {
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
	outs := make([]llm.PoolingOutput, len(rs))
	for i, out := range whole {
		outs[i] = llm.PoolingOutput{
			RequestID: out.RequestID, PromptTokenIDs: out.PromptTokenIDs, Data: rs[i].data,
			CachedTokens: out.CachedTokens,
		}
	}
	return outs, nil
}

// PoolingInfo describes how the engine reduces its inputs; the zero value for one that generates.
func (e *Engine) PoolingInfo() llm.PoolingInfo { return e.b.poolingInfo() }

// Embed returns one vector per text, normalised unless the checkpoint says otherwise. [Engine.Pool]
// takes token ids and parameters, too.
func (e *Engine) Embed(ctx context.Context, texts ...string) ([][]float32, error) {
	return e.poolTexts(ctx, llm.TaskEmbed, texts)
}

// Classify returns the probability of each class, one slice per text; PoolingInfo lists the
// classes.
func (e *Engine) Classify(ctx context.Context, texts ...string) ([][]float32, error) {
	return e.poolTexts(ctx, llm.TaskClassify, texts)
}

func (e *Engine) poolTexts(ctx context.Context, task llm.Task, texts []string) ([][]float32, error) {
	reqs := make([]llm.PoolingRequest, len(texts))
	for i, text := range texts {
		reqs[i] = llm.PoolingRequest{Prompt: text, Pooling: llm.PoolingParams{Task: task}}
	}
	outs, err := e.Pool(ctx, reqs...)
	vectors := make([][]float32, len(outs))
	for i, out := range outs {
		vectors[i] = out.Data
	}
	return vectors, err
}

// Score rates texts against a query: a classifier of one class reads each pair of texts together,
// an engine that embeds compares the directions of their vectors.
func (e *Engine) Score(ctx context.Context, query string, texts ...string) ([]float32, error) {
	pairs := make([]llm.TextPair, len(texts))
	for i, text := range texts {
		pairs[i] = llm.TextPair{Query: query, Text: text}
	}
	outs, err := e.ScorePairs(ctx, "", pairs...)
	scores := make([]float32, len(outs))
	for i, out := range outs {
		scores[i] = out.Data[0]
	}
	return scores, err
}

// ScorePairs is [Engine.Score] for pairs of texts, on behalf of a client: see [Request]. Each
// output has one number, and the tokens of both texts.
func (e *Engine) ScorePairs(ctx context.Context, client string, pairs ...llm.TextPair) ([]llm.PoolingOutput, error) {
	info := e.PoolingInfo()
	if info.Task == llm.TaskClassify && info.Dimensions > 1 {
		cfg := e.Config()
		return nil, &llm.TaskError{
			Verb: "score", Task: llm.TaskClassify, Model: cfg.Model,
			Advice: fmt.Sprintf("it has %d classes, and a score needs a model with one", info.Dimensions),
		}
	}
	if info.Task != llm.TaskClassify {
		return e.scoreVectors(ctx, client, pairs)
	}
	reqs := make([]llm.PoolingRequest, len(pairs))
	for i, p := range pairs {
		reqs[i] = llm.PoolingRequest{
			Prompt: p.Query, Pair: p.Text, Client: client, Pooling: llm.PoolingParams{Task: llm.TaskClassify},
		}
		if p.Text == "" {
			return nil, paramError(fmt.Sprintf("pairs[%d].Text", i), `""`, "a text")
		}
	}
	return e.Pool(ctx, reqs...)
}

// scoreVectors embeds every text once and compares the vectors of each pair.
func (e *Engine) scoreVectors(ctx context.Context, client string, pairs []llm.TextPair) ([]llm.PoolingOutput, error) {
	var reqs []llm.PoolingRequest
	index := map[string]int{}
	for _, p := range pairs {
		for _, text := range []string{p.Query, p.Text} {
			if _, ok := index[text]; !ok {
				index[text] = len(reqs)
				reqs = append(reqs, llm.PoolingRequest{
					Prompt: text, Client: client, Pooling: llm.PoolingParams{Task: llm.TaskEmbed},
				})
			}
		}
	}
	vectors, err := e.Pool(ctx, reqs...)
	if err != nil {
		if refused, ok := errors.AsType[*llm.TaskError](err); ok {
			err = &llm.TaskError{Verb: "score", Task: refused.Task, Model: refused.Model, Advice: refused.Advice}
		}
		return nil, err
	}
	outs := make([]llm.PoolingOutput, len(pairs))
	for i, p := range pairs {
		a, b := &vectors[index[p.Query]], &vectors[index[p.Text]]
		outs[i] = llm.PoolingOutput{
			RequestID:      b.RequestID,
			PromptTokenIDs: append(append([]int32{}, a.PromptTokenIDs...), b.PromptTokenIDs...),
			Data:           []float32{pooling.Cosine(a.Data, b.Data)},
		}
	}
	return outs, nil
}
