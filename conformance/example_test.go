package conformance_test

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"iter"
	"reflect"
	"strings"
	"testing"

	"github.com/enginetest/enginetest/conformance"
	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/llm"
)

var words = strings.Fields("the sea was calm and keeper climbed to light lamp . every evening a ship went by")

// parrot is an engine: the next word depends on the two before it.
type parrot struct {
	alive context.Context
	stop  context.CancelCauseFunc
}

func openParrot(context.Context) (*parrot, error) {
	alive, stop := context.WithCancelCause(context.Background())
	return &parrot{alive, stop}, nil
}

func (p *parrot) Shutdown(context.Context) error { p.stop(llm.ErrStopped); return nil }

func (p *parrot) Generate(ctx context.Context, reqs ...llm.Request) (outs []llm.Output, err error) {
	for _, q := range reqs {
		c := llm.Completion{FinishReason: llm.FinishLength}
		for d, err := range p.Stream(ctx, q) {
			if err != nil {
				return nil, err
			}
			c.TokenIDs, c.Text = append(c.TokenIDs, d.TokenIDs...), c.Text+d.Text
		}
		outs = append(outs, llm.Output{Prompt: q.Prompt, Completions: []llm.Completion{c}})
	}
	return outs, nil
}

// Stream is what makes it a harness.Streamer: the suite finds it and checks that too.
func (p *parrot) Stream(ctx context.Context, q llm.Request) iter.Seq2[llm.Delta, error] {
	return func(yield func(llm.Delta, error) bool) {
		text := strings.Fields(q.Prompt)
		for i := range max(q.Sampling.MaxTokens, 1) {
			if err := cmp.Or(context.Cause(p.alive), ctx.Err(), check(q)); err != nil {
				yield(llm.Delta{}, err)
				return
			}
			h := fnv.New32a()
			fmt.Fprint(h, text[max(0, len(text)-2):])
			id := h.Sum32() % uint32(len(words))
			text = append(text, words[id])
			d := llm.Delta{TokenIDs: []int32{int32(id)}, Text: " " + words[id]}
			if i >= q.Sampling.MaxTokens-1 {
				d.FinishReason = llm.FinishLength
			}
			if !yield(d, nil) {
				return
			}
		}
	}
}

// check refuses what parrots cannot do: the suite lists it as lacking.
func check(q llm.Request) error {
	rest := q.Sampling
	rest.MaxTokens = 0
	switch err := q.Sampling.Check(); {
	case err != nil:
		return err // names the parameter that is out of its range
	case !reflect.ValueOf(rest).IsZero() || q.PromptTokenIDs != nil:
		return fmt.Errorf("%w: parrots take a text and MaxTokens", llm.ErrUnsupported)
	case q.Prompt == "" || len(q.Prompt) > 1<<16:
		return fmt.Errorf("%w: %d bytes", llm.ErrPromptTooBig, len(q.Prompt))
	}
	return nil
}

// The whole test of an engine of one's own: TestParrot in this file.
func ExampleRun() {
	_ = func(t *testing.T) {
		conformance.Run(t, openParrot, conformance.Without(conformance.EndOfSequence))
	}
	// Output:
}

func TestParrot(t *testing.T) {
	report := conformance.Run(t, openParrot, conformance.Without(conformance.EndOfSequence),
		conformance.Claims(conformance.Text, conformance.TokenIDs, conformance.Streaming, conformance.RangeChecks),
		conformance.Fixture(harness.WithoutDeviceMemory("it has none")))
	if len(report.Failed()) > 0 || len(report.Results) < 60 {
		t.Errorf("%d properties, of which %d fail", len(report.Results), len(report.Failed()))
	}
}
