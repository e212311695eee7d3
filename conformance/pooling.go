package conformance

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/server"
)

// poolingProperties are those of engines that reduce texts to numbers.
var poolingProperties = []property{
	{
		name:  "pooling/embeddings repeat",
		why:   "vectors are stored: the same text must be found again, whatever it was sent with",
		needs: []Capability{Embeddings},
		check: func(c *check) error { return c.poolsAlike(Embeddings, embed) },
	},
	{
		name:  "pooling/embeddings are normalised",
		why:   "an index that compares by inner products ranks wrongly when lengths differ",
		needs: []Capability{Embeddings, NormalisedVectors},
		check: normalised,
	},
	{
		name:  "pooling/shorter embeddings",
		why:   "a shorter embedding is the beginning of the whole one: an index may be cut without a new pass",
		needs: []Capability{Embeddings, ShorterEmbeddings},
		check: shorterEmbeddings,
	},
	{
		name:  "pooling/classes repeat",
		why:   "what a text is called must not depend on the texts beside it",
		needs: []Capability{Classes},
		check: func(c *check) error { return c.poolsAlike(Classes, classify) },
	},
	{
		name:  "pooling/classes are probabilities",
		why:   "callers compare them with thresholds",
		needs: []Capability{Classes},
		check: probabilities,
	},
	{
		name:  "pooling/scores keep their order",
		why:   "a ranking must not depend on the order in which texts are sent, and a score not on its neighbours",
		needs: []Capability{Scores},
		check: scoresKeepOrder,
	},
	{
		name:  "pooling/too long is refused",
		why:   "a vector of a text that was cut without a word is the vector of another text",
		needs: []Capability{Pooling},
		check: tooLongToPool,
	},
}

// The capabilities that package harness has no interface for.
type (
	pooler interface {
		Pool(ctx context.Context, reqs ...llm.PoolingRequest) ([]llm.PoolingOutput, error)
	}
	poolingDescriber interface{ PoolingInfo() llm.PoolingInfo }
)

// pools reports whether an engine pools in any way.
func pools(e harness.Engine) bool {
	return is[harness.Embedder](e) || is[harness.Classifier](e)
}

// vectorsOf reduces texts in one call.
type vectorsOf func(ctx context.Context, e harness.Engine, texts []string) ([][]float32, error)

func embed(ctx context.Context, e harness.Engine, texts []string) ([][]float32, error) {
	return e.(harness.Embedder).Embed(ctx, texts...)
}

func classify(ctx context.Context, e harness.Engine, texts []string) ([][]float32, error) {
	return e.(harness.Classifier).Classify(ctx, texts...)
}

// pool reduces texts in one call and checks the shape of what comes back.
func (c *check) pool(f vectorsOf, texts []string) (vectors [][]float32, err error) {
	l, err := c.engine()
	if err != nil {
		return nil, err
	}
	l.fixture.Do(func() { vectors, err = f(c, l.engine(), texts) })
	if err != nil {
		return nil, err
	}
	if len(vectors) != len(texts) {
		return nil, fmt.Errorf("%d vectors for %d texts", len(vectors), len(texts))
	}
	for i, v := range vectors {
		if len(v) == 0 || len(v) != len(vectors[0]) {
			return nil, fmt.Errorf("text %d has %d numbers, and text 0 has %d: %q", i, len(v), len(vectors[0]), texts[i])
		}
		if j := slices.IndexFunc(v, func(x float32) bool {
			return math.IsNaN(float64(x)) || math.IsInf(float64(x), 0)
		}); j >= 0 {
			return nil, fmt.Errorf("number %d of text %d is %v: %q", j, i, v[j], texts[i])
		}
	}
	return vectors, nil
}

// offers reports, as an error, that a server refuses to pool at all, as it was started: it refuses
// one short text.
func (c *check) offers(what Capability, f vectorsOf) error {
	_, err := c.pool(f, []string{"a text"})
	if refused, ok := errors.AsType[*server.APIError](err); ok && (refused.Status < 500 || refused.Status == 501) {
		return lacks(what, "it refuses every text: %v", err)
	}
	return err
}

// poolTexts are of different lengths, in no order of them.
func (c *check) poolTexts() []string {
	p := c.s.opts.prompts
	return append(slices.Clone(p), p[0]+" "+p[1], "a", strings.Repeat(p[2]+" ", 3))
}

// poolsAlike compares the vectors of texts together, together again, and each alone.
func (c *check) poolsAlike(what Capability, f vectorsOf) error {
	if err := c.offers(what, f); err != nil {
		return err
	}
	texts := c.poolTexts()
	first, err := c.pool(f, texts)
	if err != nil {
		return err
	}
	again, err := c.pool(f, texts)
	if err != nil {
		return err
	}
	most := 0.0
	for i, text := range texts {
		alone, err := c.pool(f, []string{text})
		if err != nil {
			return err
		}
		for _, x := range []struct {
			what string
			v    []float32
		}{{"again", again[i]}, {"alone", alone[0]}} {
			d := farthest(first[i], x.v)
			if d > c.s.opts.tolerance {
				return fmt.Errorf("a text's numbers differ by up to %g when it is sent %s, at most %g is allowed "+
					"(option Tolerance): %q\n  first %s\n  %s %s", d, x.what, c.s.opts.tolerance, text, numbers(first[i]), x.what,
					numbers(x.v))
			}
			most = max(most, d)
		}
		if i > 0 && farthest(first[i], first[0]) == 0 {
			return fmt.Errorf("two texts have the same numbers: %q and %q: %s", texts[0], text, numbers(first[0]))
		}
	}
	c.notef("%d texts together, again and alone: numbers differ by at most %g", len(texts), most)
	return nil
}

// farthest is the largest difference of two vectors of numbers; it is infinite when their lengths
// differ.
func farthest(a, b []float32) (most float64) {
	if len(a) != len(b) {
		return math.Inf(1)
	}
	for i := range a {
		most = max(most, math.Abs(float64(a[i])-float64(b[i])))
	}
	return most
}

// numbers shows the beginning of a vector.
func numbers(v []float32) string {
	if len(v) > 4 {
		return fmt.Sprintf("%v…", v[:4])
	}
	return fmt.Sprint(v)
}

// roundOff is how far sums of float32 may be off, whatever the tolerance between answers is.
const roundOff = 1e-4

func length(v []float32) float64 {
	sum := 0.0
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	return math.Sqrt(sum)
}

func normalised(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	if info := l.engine().(poolingDescriber).PoolingInfo(); !info.Normalized {
		return lacks(NormalisedVectors, "the engine says that its embeddings are not normalised")
	}
	texts := c.poolTexts()
	vectors, err := c.pool(embed, texts)
	if err != nil {
		return err
	}
	for i, v := range vectors {
		if n := length(v); math.Abs(n-1) > roundOff {
			return fmt.Errorf("an embedding has the length %g, want 1: %q: %s", n, texts[i], numbers(v))
		}
	}
	return nil
}

func shorterEmbeddings(c *check) error {
	texts := c.poolTexts()[:3]
	whole, err := c.pool(embed, texts)
	if err != nil {
		return err
	}
	size := len(whole[0]) / 2
	short, err := c.pool(func(ctx context.Context, e harness.Engine, texts []string) (vs [][]float32, err error) {
		reqs := make([]llm.PoolingRequest, len(texts))
		for i, text := range texts {
			reqs[i] = llm.PoolingRequest{Prompt: text, Pooling: llm.PoolingParams{Task: llm.TaskEmbed, Dimensions: size}}
		}
		outs, err := e.(pooler).Pool(ctx, reqs...)
		for _, o := range outs {
			vs = append(vs, o.Data)
		}
		return vs, err
	}, texts)
	if err != nil {
		return err
	}
	for i, v := range short {
		if len(v) != size {
			return fmt.Errorf("an embedding of %d numbers has %d: %q", size, len(v), texts[i])
		}
		// Its length may be 1 again: the directions are compared.
		want := slices.Clone(whole[i][:size])
		scale := length(v) / length(want)
		for j := range want {
			want[j] = float32(float64(want[j]) * scale)
		}
		if d := farthest(v, want); d > roundOff+c.s.opts.tolerance {
			return fmt.Errorf("an embedding of %d numbers is not the beginning of the whole one: it differs by up to %g: "+
				"%q\n  got  %s\n  want %s", size, d, texts[i], numbers(v), numbers(want))
		}
	}
	return nil
}

func probabilities(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	if err := c.offers(Classes, classify); err != nil {
		return err
	}
	texts := c.poolTexts()
	vectors, err := c.pool(classify, texts)
	if err != nil {
		return err
	}
	activation := ""
	if e, ok := l.engine().(poolingDescriber); ok {
		activation = e.PoolingInfo().Activation
	}
	if activation == "none" {
		return lacks(Classes, "the engine says that its classes are logits")
	}
	for i, v := range vectors {
		sum := 0.0
		for _, x := range v {
			if x < 0 || x > 1 {
				return fmt.Errorf("a class has the probability %g: %q: %s", x, texts[i], numbers(v))
			}
			sum += float64(x)
		}
		if activation == "softmax" && math.Abs(sum-1) > roundOff {
			return fmt.Errorf("the classes' probabilities add up to %g, want 1: %q: %s", sum, texts[i], numbers(v))
		}
	}
	return nil
}

func scoresKeepOrder(c *check) error {
	texts := c.poolTexts()
	query := texts[0]
	score := func(ctx context.Context, e harness.Engine, texts []string) (vs [][]float32, err error) {
		scores, err := e.(harness.Scorer).Score(ctx, query, texts...)
		for _, s := range scores {
			vs = append(vs, []float32{s})
		}
		return vs, err
	}
	if err := c.offers(Scores, score); err != nil {
		return err
	}
	forward, err := c.pool(score, texts)
	if err != nil {
		return err
	}
	reversed := slices.Clone(texts)
	slices.Reverse(reversed)
	backward, err := c.pool(score, reversed)
	if err != nil {
		return err
	}
	for i, text := range texts {
		alone, err := c.pool(score, []string{text})
		if err != nil {
			return err
		}
		one := forward[i][0]
		if one < -1-roundOff || one > 1+roundOff {
			return fmt.Errorf("a score is %g, neither a probability nor a cosine: %q", one, text)
		}
		if other := backward[len(texts)-1-i][0]; math.Abs(float64(one)-float64(other)) > c.s.opts.tolerance {
			return fmt.Errorf("a score is %g, and %g when the texts are sent in the opposite order: %q", one, other, text)
		}
		if other := alone[0][0]; math.Abs(float64(one)-float64(other)) > c.s.opts.tolerance {
			return fmt.Errorf("a score is %g, and %g when the text is sent alone: %q", one, other, text)
		}
	}
	if farthest(slices.Concat(forward[1:]...), slices.Repeat(forward[1], len(texts)-1)) == 0 {
		return fmt.Errorf("every text has the score %g", forward[1][0])
	}
	return nil
}

// refusesParameter reports whether an error names a parameter that is out of its range, or is a
// server's refusal of a request.
func refusesParameter(err error) bool {
	if _, ok := errors.AsType[*llm.ParamError](err); ok {
		return true
	}
	refused, ok := errors.AsType[*server.APIError](err)
	return ok && refused.Status < 500
}

// tooLongToPool sends a text that fits no model beside one that does.
func tooLongToPool(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	long := strings.Repeat("too long for any model of a test ", 40_000)
	var unsupported error
	for _, x := range []struct {
		name string
		f    vectorsOf
		has  bool
	}{
		{"embed", embed, is[harness.Embedder](l.engine())}, {"classify", classify, is[harness.Classifier](l.engine())},
	} {
		name, f := x.name, x.f
		if !x.has {
			continue
		}
		if err := c.offers(Pooling, f); lackOf(err, nil) != nil {
			unsupported = err
			continue
		} else if err != nil {
			return err
		}
		before, err := c.pool(f, []string{"short"})
		if err != nil {
			return err
		}
		got, err := c.pool(f, []string{"short", long})
		switch {
		case err == nil:
			return fmt.Errorf("%s: a text of %d bytes was answered: %s", name, len(long), numbers(got[1]))
		case c.Err() != nil:
			return fmt.Errorf("%s: a text of %d bytes is not refused, and waits", name, len(long))
		case !errors.Is(err, llm.ErrPromptTooBig) && !refusesParameter(err):
			return fmt.Errorf("%s: the refusal of a text of %d bytes is neither llm.ErrPromptTooBig nor names a parameter: %w",
				name, len(long), err)
		}
		after, err := c.pool(f, []string{"short"})
		if err != nil {
			return fmt.Errorf("%s: after a text that is too long: %w", name, err)
		}
		if d := farthest(before[0], after[0]); d > c.s.opts.tolerance {
			return fmt.Errorf("%s: after a text that is too long, numbers of a short one differ by up to %g", name, d)
		}
		return nil
	}
	if unsupported == nil {
		return lacks(Pooling, "it neither embeds nor classifies")
	}
	return unsupported
}
