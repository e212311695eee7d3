package server_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/server"
)

// verbCases use what else a server has.
var verbCases = []testCase{
	{"stream", "stream", func(t *testing.T, u *suite) error {
		p := llm.SamplingParams{MaxTokens: 20}
		full, err := u.one(t, story, p)
		if err != nil {
			return err
		}
		text, deltas := "", 0
		var ids []int32
		var reason llm.FinishReason
		for d, err := range u.Stream(within(t), llm.Request{Prompt: story, Sampling: p}) {
			if err != nil {
				return err
			}
			text += d.Text
			ids = append(ids, d.TokenIDs...)
			deltas++
			if d.FinishReason != "" {
				reason = d.FinishReason
			}
		}
		require.Equal(t, full.Text, text)
		require.Equal(t, full.TokenIDs, ids)
		require.Equal(t, full.FinishReason, reason)
		require.Greater(t, deltas, 2, "it comes in parts")
		return nil
	}},
	{"a refused stream", "", func(t *testing.T, u *suite) error {
		for _, err := range u.Stream(within(t), llm.Request{Prompt: story, Sampling: llm.SamplingParams{TopP: 2}}) {
			require.ErrorContains(t, err, "TopP is 2")
			return nil
		}
		return errors.New("no error")
	}},
	{"abort by disconnect", "abort by disconnect", abortByDisconnect},
	{"abort by context", "", func(t *testing.T, u *suite) error {
		ctx, cancel := context.WithCancel(within(t))
		defer cancel()
		var last error
		for _, err := range u.Stream(ctx, llm.Request{Prompt: story, Sampling: longRequest(u)}) {
			last = err
			cancel()
		}
		require.ErrorIs(t, last, context.Canceled)
		return u.waitIdle(t)
	}},
	{"chat", "chat", func(t *testing.T, u *suite) error {
		out, err := u.Chat(within(t), []llm.Message{{Role: "user", Content: "What is 12+30?"}},
			llm.SamplingParams{MaxTokens: 8})
		if err == nil {
			require.Equal(t, "42", strings.TrimSpace(out.Completions[0].Text))
			require.Equal(t, llm.FinishStop, out.Completions[0].FinishReason)
		}
		return err
	}},
	{"chat of several turns", "chat", func(t *testing.T, u *suite) error {
		out, err := u.Chat(within(t), []llm.Message{
			{Role: "user", Content: "What is 1+1?"}, {Role: "assistant", Content: "2"}, {
				Role:    "user",
				Content: "What is 20+3?",
			},
		}, llm.SamplingParams{MaxTokens: 8})
		if err == nil {
			require.Equal(t, "23", strings.TrimSpace(out.Completions[0].Text))
		}
		return err
	}},
	{"embed", "embed", func(t *testing.T, u *suite) error {
		v, err := u.Embed(within(t), "one", "two")
		if err == nil {
			require.Len(t, v, 2)
			require.NotEqual(t, v[0], v[1])
		}
		return err
	}},
	{"classify", "classify", func(t *testing.T, u *suite) error {
		_, err := u.Classify(within(t), "one")
		return err
	}},
	{"score", "score", func(t *testing.T, u *suite) error {
		_, err := u.Score(within(t), "q", "one", "two")
		return err
	}},
	{"tokenize", "tokenize", func(t *testing.T, u *suite) error {
		ids, err := u.Tokenize(within(t), story)
		if err == nil {
			require.Equal(t, []int32{450, 483}, ids)
		}
		return err
	}},
	{"detokenize", "detokenize", func(t *testing.T, u *suite) error {
		text, err := u.Detokenize(within(t), []int32{450, 483})
		if err == nil {
			require.Equal(t, story, text)
		}
		return err
	}},
	{"sleep and wake", "sleep, wake", func(t *testing.T, u *suite) error {
		if err := u.Sleep(within(t), 1); err != nil {
			return err
		}
		if err := u.Wake(within(t)); err != nil {
			return err
		}
		_, err := u.one(t, story, llm.SamplingParams{})
		return err
	}},
	{"prefix cache reset", "prefix cache reset", prefixCacheReset},
	{"statistics", "running, waiting", func(t *testing.T, u *suite) error {
		st, err := u.Stats(within(t))
		if err == nil && !st.Knows("Running") {
			return errors.ErrUnsupported
		}
		require.Zero(t, st.Running)
		require.Zero(t, st.Waiting)
		return err
	}},
	{"KV usage", "KV usage", func(t *testing.T, u *suite) error {
		st, err := u.Stats(within(t))
		if err == nil && !st.Knows("KVUsage") {
			return errors.ErrUnsupported
		}
		return err
	}},
	{"activity", "running, waiting", func(t *testing.T, u *suite) error {
		a, err := u.Activity(within(t))
		require.True(t, err != nil || a.Idle())
		return err
	}},
	{"models in memory", "models in memory", func(t *testing.T, u *suite) error {
		st, err := u.Stats(within(t))
		if err == nil && st.Loaded == nil {
			return errors.ErrUnsupported
		}
		require.NotEmpty(t, st.Loaded)
		require.Positive(t, st.Loaded[0].Bytes)
		return err
	}},
	{"attach", "attach", func(t *testing.T, u *suite) error {
		attach := server.Attach(u.URL()).With(server.Model(u.Model()))
		if u.dialect {
			attach = attach.With(server.Speaks(u.Protocol()))
		}
		a, err := attach.Start(within(t))
		if err != nil {
			return err
		}
		require.Equal(t, u.Protocol(), a.Protocol(), "recognized")
		c, err := (&suite{Server: a}).one(t, "2+3=", llm.SamplingParams{})
		require.Equal(t, "5", c.Text)
		return errors.Join(err, a.Stop(within(t)).Err())
	}},
	{"an unknown path is an APIError", "", func(t *testing.T, u *suite) error {
		_, err := server.Attach(u.URL() + "/nowhere").With(server.Speaks(server.ProtocolVLLM)).Start(within(t))
		var refused *server.APIError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, 404, refused.Status)
		return nil
	}},
	{"unload", "unload", func(t *testing.T, u *suite) error {
		if err := u.Unload(within(t)); err != nil {
			return err
		}
		st, err := u.Stats(within(t))
		require.Empty(t, st.Loaded)
		return err
	}},
}

// longRequest asks for as much as the model can give.
func longRequest(u *suite) llm.SamplingParams {
	p := llm.SamplingParams{MaxTokens: 900, Temperature: 1.5}
	if u.Protocol() != server.ProtocolOllama {
		p.IgnoreEOS = true
	}
	return p
}

// waitIdle waits until the server computes nothing, where it says so.
func (u *suite) waitIdle(t *testing.T) error {
	for end := time.Now().Add(long); ; time.Sleep(time.Millisecond) {
		st, err := u.Stats(within(t))
		if err != nil || !st.Knows("Running") || st.Running+st.Waiting == 0 {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("still %d running, %d waiting", st.Running, st.Waiting)
		}
	}
}

// generated is the counter of generated tokens.
func (u *suite) generated(t *testing.T) (float64, error) {
	st, err := u.Stats(within(t))
	for _, name := range []string{"vllm:generation_tokens_total", "llamacpp:tokens_predicted_total"} {
		if v, ok := st.Metrics[name]; ok {
			return v, err
		}
	}
	return 0, errors.Join(err, errors.ErrUnsupported)
}

// abortByDisconnect leaves a stream at its first part: the server stops to compute.
func abortByDisconnect(t *testing.T, u *suite) error {
	before, err := u.generated(t)
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	counted := err == nil
	for attempt := 0; ; attempt++ { // a server may be done before it learns that its client has left
		for _, err := range u.Stream(within(t), llm.Request{Prompt: story, Sampling: longRequest(u)}) {
			if err != nil {
				return err
			}
			break
		}
		if err := u.waitIdle(t); err != nil || !counted {
			return err
		}
		after, err := u.generated(t)
		if err != nil || after-before < 900 {
			return err
		}
		require.Less(t, attempt, 20, "tokens that no one reads")
		before = after
	}
}

// prefixCacheReset fills the cache, empties it, and finds nothing in it.
func prefixCacheReset(t *testing.T, u *suite) error {
	req := llm.Request{
		Prompt:   strings.Repeat("The lighthouse keeper walked. ", 8),
		Sampling: llm.SamplingParams{MaxTokens: 2},
	}
	for range 2 {
		if _, err := u.Generate(within(t), req); err != nil {
			return err
		}
	}
	outs, err := u.Generate(within(t), req)
	if err != nil {
		return err
	}
	cached := outs[0].CachedTokens
	if err := u.ResetPrefixCache(within(t)); err != nil {
		return err
	}
	require.Positive(t, cached, "a repeated prompt is found")
	outs, err = u.Generate(within(t), req)
	if err != nil {
		return err
	}
	require.Zero(t, outs[0].CachedTokens)
	return nil
}
