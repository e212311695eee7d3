package server_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/server"
)

// suite is one server under the cases. Rows collects what the table of docs/servers.md says.
type suite struct {
	*server.Server
	dialect bool // the server only speaks the protocol: what it refuses is not run
	rows    map[string]string
}

// runSuite runs every case on a server that has the bundled model.
func runSuite(t *testing.T, u *suite) map[string]string {
	t.Helper()
	u.rows = map[string]string{}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := c.run(t, u)
			if c.row == "" {
				require.NoError(t, err)
				return
			}
			cell := "yes"
			switch {
			case errors.Is(err, errors.ErrUnsupported):
				cell = "no"
			case u.dialect && refused(err):
				cell = notRun
			case configured(err):
				cell = "with a model for it"
			default:
				require.NoError(t, err)
			}
			if before, ok := u.rows[c.row]; ok && before != cell {
				t.Errorf("another case of %q says %s, this one %s", c.row, before, cell)
			}
			u.rows[c.row] = cell
		})
	}
	return u.rows
}

// configured tells a server that has a verb, and was started with a model that does not.
func configured(err error) bool {
	var refused *server.APIError
	return errors.As(err, &refused) && (refused.Status == 501 || refused.Code == "unsupported_task" ||
		strings.Contains(refused.Message, "does not support"))
}

// refused tells a server that has not got a path or a parameter.
func refused(err error) bool {
	var refused *server.APIError
	return errors.As(err, &refused) && (refused.Status == 404 || refused.Status == 400)
}

// one asks for one completion.
func (u *suite) one(t *testing.T, prompt string, p llm.SamplingParams) (llm.Completion, error) {
	t.Helper()
	outs, err := u.Generate(within(t), llm.Request{Prompt: prompt, Sampling: p})
	if err != nil {
		return llm.Completion{}, err
	}
	require.Len(t, outs, 1)
	require.Len(t, outs[0].Completions, 1)
	return outs[0].Completions[0], nil
}

// story is a prompt whose greedy answer is longer than any case asks for, with IgnoreEOS or
// without.
const story = "The lighthouse"

type testCase struct {
	name, row string
	run       func(t *testing.T, u *suite) error
}

var cases = slices.Concat(parameterCases, verbCases)

// parameterCases ask for one completion, in many ways.
var parameterCases = []testCase{
	{"greedy", "generate", func(t *testing.T, u *suite) error {
		c, err := u.one(t, "2+3=", llm.SamplingParams{MaxTokens: 8})
		require.Equal(t, "5", c.Text)
		require.Equal(t, llm.FinishStop, c.FinishReason)
		return err
	}},
	{"greedy is deterministic", "", func(t *testing.T, u *suite) error {
		a, err := u.one(t, story, llm.SamplingParams{MaxTokens: 24})
		b, err2 := u.one(t, story, llm.SamplingParams{MaxTokens: 24})
		require.Equal(t, a.Text, b.Text)
		return errors.Join(err, err2)
	}},
	{"a batch keeps its order", "", func(t *testing.T, u *suite) error {
		var reqs []llm.Request
		for i := range 12 {
			reqs = append(reqs, llm.Request{
				Prompt:   fmt.Sprintf("%d+%d=", i, i+1),
				Sampling: llm.SamplingParams{MaxTokens: 6},
			})
		}
		outs, err := u.Generate(within(t), reqs...)
		for i, o := range outs {
			require.Equal(t, fmt.Sprint(2*i+1), o.Completions[0].Text, o.Prompt)
		}
		require.True(t, err != nil || len(outs) == len(reqs))
		return err
	}},
	{"no requests", "", func(t *testing.T, u *suite) error {
		outs, err := u.Generate(within(t))
		require.Empty(t, outs)
		return err
	}},
	{"the limit", "", func(t *testing.T, u *suite) error {
		c, err := u.one(t, story, llm.SamplingParams{MaxTokens: 3})
		require.Equal(t, llm.FinishLength, c.FinishReason)
		return err
	}},
	{"the limit by default", "", func(t *testing.T, u *suite) error {
		short, err := u.one(t, story, llm.SamplingParams{})
		full, err2 := u.one(t, story, llm.SamplingParams{MaxTokens: 16})
		require.Equal(t, full, short, "16 tokens, greedy")
		return errors.Join(err, err2)
	}},
	{"no tokens", "", func(t *testing.T, u *suite) error {
		_, err := u.one(t, story, llm.SamplingParams{MaxTokens: -1})
		var param *llm.ParamError
		require.ErrorAs(t, err, &param, "never sent: some servers take it for no limit")
		return nil
	}},
	{"out of range", "", func(t *testing.T, u *suite) error {
		_, err := u.one(t, story, llm.SamplingParams{Temperature: 3})
		require.ErrorContains(t, err, "Temperature is 3, must be in [0, 2]")
		return nil
	}},
	{"a cut context", "", func(t *testing.T, u *suite) error {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(errors.New("the caller's own cause"))
		_, err := u.Generate(ctx, llm.Request{Prompt: story})
		require.ErrorContains(t, err, "the caller's own cause")
		return nil
	}},
	{"token ids", "token ids", func(t *testing.T, u *suite) error {
		c, err := u.one(t, "2+3=", llm.SamplingParams{MaxTokens: 8})
		if err == nil && c.TokenIDs == nil {
			return errors.ErrUnsupported
		}
		require.Equal(t, []int32{21, 0}, c.TokenIDs, "5, and the end")
		return err
	}},
	{"prompt of token ids", "prompt of token ids", func(t *testing.T, u *suite) error {
		outs, err := u.Generate(within(t), llm.Request{
			PromptTokenIDs: []int32{450, 483},
			Sampling:       llm.SamplingParams{MaxTokens: 8},
		})
		if err != nil {
			return err
		}
		c, err := u.one(t, story, llm.SamplingParams{MaxTokens: 8})
		require.Equal(t, c.Text, outs[0].Completions[0].Text)
		return err
	}},
	{"stop", "stop", func(t *testing.T, u *suite) error {
		full, err := u.one(t, story, llm.SamplingParams{MaxTokens: 24})
		if err != nil {
			return err
		}
		words := strings.Fields(full.Text)
		require.Greater(t, len(words), 4, full.Text)
		c, err := u.one(t, story, llm.SamplingParams{MaxTokens: 24, Stop: []string{words[3]}})
		require.Equal(t, full.Text[:strings.Index(full.Text, words[3])], c.Text)
		require.Equal(t, llm.FinishStop, c.FinishReason)
		return err
	}},
	{"seed", "seed", func(t *testing.T, u *suite) error {
		texts := map[string]bool{}
		for seed := range int64(6) {
			p := llm.SamplingParams{MaxTokens: 12, Temperature: 1.5, Seed: &seed}
			a, err := u.one(t, story, p)
			if err != nil {
				return err
			}
			b, err := u.one(t, story, p)
			if err != nil {
				return err
			}
			require.Equal(t, a.Text, b.Text, "seed %d", seed)
			texts[a.Text] = true
		}
		require.Greater(t, len(texts), 1, "other seeds, other texts")
		return nil
	}},
	{"top k of 1", "", func(t *testing.T, u *suite) error {
		a, err := u.one(t, story, llm.SamplingParams{MaxTokens: 12})
		b, err2 := u.one(t, story, llm.SamplingParams{MaxTokens: 12, Temperature: 1.5, TopK: 1})
		require.Equal(t, a.Text, b.Text)
		return errors.Join(err, err2)
	}},
	{"n", "n", func(t *testing.T, u *suite) error {
		outs, err := u.Generate(within(t), llm.Request{
			Prompt:   story,
			Sampling: llm.SamplingParams{MaxTokens: 6, N: 3, Temperature: 1.5},
		})
		if err != nil {
			return err
		}
		require.Len(t, outs[0].Completions, 3)
		for i, c := range outs[0].Completions {
			require.Equal(t, i, c.Index)
			require.NotEmpty(t, c.Text)
		}
		return nil
	}},
	{"logprobs", "logprobs", func(t *testing.T, u *suite) error {
		k := 3
		c, err := u.one(t, story, llm.SamplingParams{MaxTokens: 4, Logprobs: &k})
		if err != nil {
			return err
		}
		require.Len(t, c.Logprobs, 4)
		sum := 0.0
		for _, position := range c.Logprobs {
			require.Len(t, position, 3)
			sum += float64(position[0].Logprob)
			for i, l := range position {
				require.Equal(t, i+1, l.Rank)
				require.LessOrEqual(t, l.Logprob, float32(0))
				require.True(t, i == 0 || l.Logprob <= position[i-1].Logprob)
			}
		}
		require.InDelta(t, sum, c.CumulativeLogprob, 1e-3, "greedy takes the first")
		require.Contains(t, c.Text, c.Logprobs[0][0].Token)
		return nil
	}},
	{"the sampled token's logprob alone", "logprobs", func(t *testing.T, u *suite) error {
		none := 0
		c, err := u.one(t, story, llm.SamplingParams{MaxTokens: 4, Logprobs: &none})
		if err != nil {
			return err
		}
		require.Len(t, c.Logprobs, 4)
		require.Negative(t, c.CumulativeLogprob)
		return nil
	}},
	{"prompt logprobs", "prompt logprobs", func(t *testing.T, u *suite) error {
		k := 1
		outs, err := u.Generate(within(t), llm.Request{
			Prompt:   story,
			Sampling: llm.SamplingParams{MaxTokens: 1, PromptLogprobs: &k},
		})
		if err != nil {
			return err
		}
		require.Len(t, outs[0].PromptLogprobs, 2)
		require.Nil(t, outs[0].PromptLogprobs[0])
		return nil
	}},
	{"logit bias", "logit bias", func(t *testing.T, u *suite) error {
		c, err := u.one(t, "2+3=", llm.SamplingParams{MaxTokens: 1, LogitBias: map[int32]float64{25: 100}})
		if err == nil {
			require.Equal(t, "9", c.Text)
		}
		return err
	}},
	{"ignore EOS", "ignore EOS", func(t *testing.T, u *suite) error {
		c, err := u.one(t, "2+3=", llm.SamplingParams{MaxTokens: 9, IgnoreEOS: true})
		if err == nil {
			require.Equal(t, llm.FinishLength, c.FinishReason)
		}
		return err
	}},
	{"min tokens", "min tokens", func(t *testing.T, u *suite) error {
		c, err := u.one(t, "2+3=", llm.SamplingParams{MaxTokens: 9, MinTokens: 4})
		if err == nil {
			require.GreaterOrEqual(t, len(c.Text), 2, "5 alone is one token: %q", c.Text)
		}
		return err
	}},
	{"stop token ids", "stop token ids", func(t *testing.T, u *suite) error {
		c, err := u.one(t, "2+3=", llm.SamplingParams{MaxTokens: 9, StopTokenIDs: []int32{21}, IgnoreEOS: true})
		if err == nil {
			require.Equal(t, llm.FinishStop, c.FinishReason)
			require.Equal(t, "21", c.StopReason)
		}
		return err
	}},
	{"allowed token ids", "allowed token ids", func(t *testing.T, u *suite) error {
		c, err := u.one(t, "2+3=", llm.SamplingParams{MaxTokens: 3, AllowedTokenIDs: []int32{25}})
		if err == nil {
			require.Equal(t, "999", c.Text)
		}
		return err
	}},
	{"penalties", "penalties", func(t *testing.T, u *suite) error {
		plain, err := u.one(t, "1 1 1 1 1 1", llm.SamplingParams{MaxTokens: 12})
		if err != nil {
			return err
		}
		c, err := u.one(t, "1 1 1 1 1 1", llm.SamplingParams{
			MaxTokens: 12, FrequencyPenalty: 2, PresencePenalty: 2,
			RepetitionPenalty: 3,
		})
		require.NotEqual(t, plain.Text, c.Text)
		return err
	}},
	{"an unknown parameter is named", "", func(t *testing.T, u *suite) error {
		_, err := u.one(t, story, llm.SamplingParams{EpsilonCutoff: 0.1})
		require.ErrorContains(t, err, fmt.Sprintf("%s has no parameter EpsilonCutoff", u.Protocol()))
		return nil
	}},
	{"an empty prompt", "", func(t *testing.T, u *suite) error {
		_, err := u.one(t, "", llm.SamplingParams{MaxTokens: 2})
		var refused *server.APIError
		require.True(t, err == nil || errors.As(err, &refused), "an answer, or a refusal: %v", err)
		return nil
	}},
	{"text of any language", "", func(t *testing.T, u *suite) error {
		_, err := u.one(t, "naïve — 日本語 🙂\r\n\t\"q\" \\", llm.SamplingParams{MaxTokens: 2})
		return err
	}},
}
