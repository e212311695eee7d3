package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gotest.tools/v3/skip"

	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/gpuwait/gpuwaittest"
)

func command(stdin string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(context.Background(), args, strings.NewReader(stdin), &out, &errs)
	return code, out.String(), errs.String()
}

func TestWrongUse(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"generate", exitUsage, "give one of --prompt, --prompt-ids and --batch, not 0"},
		{"generate --prompt a --prompt-ids 1", exitUsage, "not 2"},
		{"generate --prompt-ids 1,x", exitUsage, `"x" is not a token id`},
		{"generate --prompt a --top-p 0", exitUsage, "top_p is 0, must be in (0, 1]"},
		{"generate --prompt a --max-tokens 0", exitUsage, "max_tokens is 0, must be at least 1"},
		{"generate --prompt a --temperature 9", exitUsage, "Temperature is 9"},
		{"generate --prompt a --temperature warm", exitUsage, "temperature"},
		{"generate --prompt a --logprobs 2", exitUsage, "need --json"},
		{"generate --prompt a --logit-bias 3", exitUsage, `"3" is not id=bias`},
		{"generate --prompt-ids 1,2,99999", exitUsage, "99999"},
		{
			"generate --prompt a stray", exitUsage,
			`enginetest generate takes flags only, not "stray": a prompt's flag is --prompt`,
		},
		{"generate --prompt a --tensor-parallel -1", exitUsage, "TensorParallel is -1"},
		{
			"generate --prompt a --device cpu --tensor-parallel 3", exitUsage,
			"num_attention_heads is 8 (possible: 1, 2, 4 or 8)",
		},
		{"generate --batch .", exitUsage, "read .: is a directory\n"},
		{"generate --no-such-flag", exitUsage, "no-such-flag"},
		{"generate --batch no-such-file", exitUsage, "no-such-file"},
		{"generate --model /no/such/folder --prompt a", exitFailed, "/no/such/folder"},
		{"no-such-command", exitUsage, "no-such-command"},
		{"bench --shape huge", exitUsage, `"huge" is not tiny, 110m or 1b`},
		{"bench --batch 0", exitUsage, "must be at least 1"},
		{"wait --ratio 2", exitUsage, "--ratio is 2, must be in [0, 1)"},
		{"wait --ratio NaN", exitUsage, "--ratio is NaN"},
		{"wait --bytes many", exitUsage, `"many" is not a size`},
	} {
		t.Run(c.args, func(t *testing.T) {
			code, stdout, stderr := command("", strings.Fields(c.args)...)
			assert.Equal(t, c.code, code)
			assert.Contains(t, stderr, c.want)
			assert.Empty(t, stdout, "errors go to standard error only")
		})
	}
}

// hasGPU reports whether gpuwait can measure here.
func hasGPU(t *testing.T) bool {
	t.Helper()
	src, err := gpuwait.Open()
	if err == nil {
		require.NoError(t, src.Close())
	}
	return err == nil
}

func TestNoGPUIsCannotMeasure(t *testing.T) {
	skip.If(t, hasGPU(t), "this machine has a GPU")
	for _, args := range [][]string{{"gpus"}, {"gpus", "--json"}, {"wait", "--timeout", "1s"}} {
		code, stdout, stderr := command("", args...)
		assert.Equal(t, 3, code)
		assert.Contains(t, stderr, "cannot measure")
		assert.Empty(t, stdout)
	}
}

func TestGenerateText(t *testing.T) {
	code, stdout, stderr := command("", "generate", "--prompt", "2+3=")
	require.Zero(t, code, stderr)
	assert.Equal(t, "2+3=5\n", stdout)
	assert.Empty(t, stderr, "no progress bar outside a terminal")
	code, stdout, stderr = command("", "generate", "--prompt", "2+3=", "--device", "cpu", "--tensor-parallel", "2")
	require.Zero(t, code, stderr)
	assert.Equal(t, "2+3=5\n", stdout)
	code, stdout, stderr = command("", "generate", "--prompt", "2+3=5")
	require.Zero(t, code, stderr)
	assert.Equal(t, "2+3=5\n", stdout, "nothing but the end of the sequence comes: no text, and no ids in its place")
	code, stdout, stderr = command("", "generate", "--prompt-ids", "20,13,21,31", "--skip-tokenizer")
	require.Zero(t, code, stderr)
	assert.Equal(t, "25,29,20,21,0\n", stdout, "without a tokenizer, ids")
}

func TestGenerateEndsWithTheSignalThatEndedIt(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	time.AfterFunc(50*time.Millisecond, func() { cancel(errors.New("interrupt signal received")) })
	var stderr strings.Builder
	code := run(ctx, []string{
		"generate", "--prompt-ids", "1", "--n", "64", "--temperature", "1", "--max-tokens",
		"1000", "--ignore-eos",
	}, nil, io.Discard, &stderr)
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, stderr.String(), "interrupt signal received", "while it loads, or later")
}

// TestGenerateReferences compares with Hugging Face: tokens equal, log-probabilities within 1e-4.
func TestGenerateReferences(t *testing.T) {
	const dir = "../../engine/internal/modelrunner/testdata/tiny-llama"
	var golden struct {
		Prompts []struct {
			IDs, Greedy []int32
			Logprob     []float64 `json:"logprob_of_greedy"`
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, "golden.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &golden))
	var batch strings.Builder
	for _, p := range golden.Prompts {
		fmt.Fprintf(&batch, `{"prompt_ids": %s}`+"\n\n", mustJSON(t, p.IDs))
	}
	code, stdout, stderr := command(batch.String(), "generate", "--model", dir, "--batch", "-", "--max-tokens", "40",
		"--ignore-eos", "--logprobs", "2", "--prompt-logprobs", "1", "--json")
	require.Zero(t, code, stderr)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	require.Len(t, lines, len(golden.Prompts))
	for i, p := range golden.Prompts {
		got := parseResult(t, lines[i])
		assert.Equal(t, p.IDs, got.PromptTokenIDs)
		assert.Equal(t, p.Greedy, got.Outputs[0].TokenIDs)
		assert.Equal(t, "length", got.Outputs[0].FinishReason)
		require.Len(t, got.Outputs[0].Logprobs, len(p.Greedy))
		for j, id := range p.Greedy {
			assert.InDelta(t, p.Logprob[j], got.Outputs[0].Logprobs[j][fmt.Sprint(id)], 1e-4)
			assert.Len(t, got.Outputs[0].Logprobs[j], 2)
		}
		require.Len(t, got.PromptLogprobs, len(p.IDs))
		assert.Nil(t, got.PromptLogprobs[0])
		for j, id := range p.IDs[1:] {
			assert.Contains(t, got.PromptLogprobs[j+1], fmt.Sprint(id))
		}
	}
}

type jsonResult struct {
	PromptTokenIDs []int32 `json:"prompt_token_ids"`
	Outputs        []struct {
		TokenIDs     []int32              `json:"token_ids"`
		Text         string               `json:"text"`
		FinishReason string               `json:"finish_reason"`
		Logprobs     []map[string]float64 `json:"logprobs"`
	} `json:"outputs"`
	PromptLogprobs []map[string]float64 `json:"prompt_logprobs"`
}

func parseResult(t *testing.T, line string) (r jsonResult) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(line), &r))
	return r
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	require.NoError(t, err)
	return string(data)
}

// TestBatchIsSingles runs seeded prompts together and one by one, with the flags as defaults of the
// lines.
func TestBatchIsSingles(t *testing.T) {
	lines := []string{
		`{"prompt": "The lighthouse", "seed": 1}`,
		`{"prompt": "Once upon a time", "seed": 2, "temperature": 1.3, "top_k": 20}`,
		`{"prompt": "2+3=", "temperature": 0}`,
		`{"prompt": "{\"name\":", "seed": 3, "n": 2, "stop": "}"}`,
	}
	flags := []string{
		"generate", "--batch", "-", "--json", "--temperature", "0.8", "--max-tokens", "12",
		"--repetition-penalty", "1.1",
	}
	code, together, stderr := command(strings.Join(lines, "\n"), flags...)
	require.Zero(t, code, stderr)
	var alone string
	for _, l := range lines {
		code, stdout, stderr := command(l, flags...)
		require.Zero(t, code, stderr)
		alone += stdout
	}
	assert.Equal(t, alone, together)
	assert.Len(t, parseResult(t, strings.Split(together, "\n")[3]).Outputs, 2)
}

func TestBadBatches(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"empty":         {"\n\n", "no prompts"},
		"not JSON":      {`{"prompt": "a"}` + "\nnonsense", "-:2: invalid character"},
		"unknown field": {`{"prompt": "a", "temprature": 1}`, `unknown field "temprature"`},
		"two values":    {`{"prompt": "a"} {"prompt": "b"}`, "more than one JSON value"},
		"cut off":       {`{"prompt": "a"`, "ends too early"},
		"no prompt":     {`{"max_tokens": 3}`, "no prompt"},
		"two prompts":   {`{"prompt": "a", "prompt_ids": [1]}`, "both given"},
		"zero":          {`{"prompt": "a", "top_p": 0}`, "-:1: engine: top_p is 0"},
		"out of range":  {`{"prompt": "a", "min_p": 7}`, "request -:1: engine: MinP is 7"},
		"a later one": {
			`{"prompt": "a"}` + "\n\n" + `{"prompt_ids": [1, 99999]}`,
			"request -:3: engine: PromptTokenIDs[1] is 99999",
		},
		"empty ids":     {`{"prompt_ids": []}`, "prompt"},
		"null id":       {`{"prompt_ids": [1, null]}`, "token id 1 is null"},
		"wrong type":    {`{"prompt": "a", "max_tokens": "many"}`, "max_tokens is a JSON string, want an integer"},
		"long key":      {`{"` + strings.Repeat("k", 1000) + `": 1}`, "kkk…"},
		"not an object": {`[1]`, "the line is a JSON array, want an object"},
		"huge id":       {`{"prompt_ids": [99999999999]}`, "99999999999"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := command(c.in, "generate", "--batch", "-")
			assert.Equal(t, exitUsage, code)
			assert.Contains(t, stderr, c.want)
			assert.Empty(t, stdout)
		})
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var out, errs bytes.Buffer
	assert.Equal(t, exitFailed, run(ctx, []string{"generate", "--prompt", "a"}, nil, &out, &errs))
	assert.Contains(t, errs.String(), "canceled")
}

// A batch that never comes: the signal ends the command.
func TestCancelledWhileReading(t *testing.T) {
	in, nobody := io.Pipe()
	t.Cleanup(func() { _ = nobody.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	var out, errs bytes.Buffer
	assert.Equal(t, exitFailed, run(ctx, []string{"generate", "--batch", "-"}, in, &out, &errs))
	assert.Contains(t, errs.String(), "deadline exceeded")
	assert.Empty(t, out.String())
}

func TestWithoutTokenizer(t *testing.T) {
	dir := fixtures.Checkpoint(t, fixtures.Spec{})
	code, stdout, stderr := command("", "generate", "--model", dir, "--prompt-ids", "1,2,3", "--max-tokens", "4")
	require.Zero(t, code, stderr)
	assert.Regexp(t, `^\d+,\d+,\d+,\d+\n$`, stdout)
	code, _, stderr = command("", "generate", "--model", dir, "--prompt", "text")
	assert.NotZero(t, code)
	assert.Contains(t, stderr, "tokenizer")
}

func TestBench(t *testing.T) {
	for devices, args := range map[int][]string{1: nil, 2: {"--device", "cpu", "--tensor-parallel", "2"}} {
		args = append([]string{
			"bench", "--shape", "tiny", "--repeat", "1", "--cycles", "2", "--output", "4", "--batch",
			"1", "--json",
		}, args...)
		code, stdout, stderr := command("", args...)
		require.Zero(t, code, stderr)
		var report struct {
			Devices int
			Results []struct{ Name string }
		}
		require.NoError(t, json.Unmarshal([]byte(stdout), &report))
		assert.GreaterOrEqual(t, len(report.Results), 4)
		assert.Equal(t, devices, report.Devices)
	}
}

func TestParseBytes(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "17": 17, "2GiB": 2 << 30, "512 MiB": 512 << 20, "1.5g": 3 << 29,
		"4kb": 4096,
	} {
		got, err := parseBytes(in)
		require.NoError(t, err, in)
		assert.Equal(t, want, got, in)
	}
	for _, in := range []string{"", "GiB", "-1", "1XB", "1iGB", "9e30", "NaN"} {
		_, err := parseBytes(in)
		assert.Error(t, err, in)
	}
}

// FuzzBatch: whatever a batch file holds, reading it ends in requests or in an error, never in a
// panic.
func FuzzBatch(f *testing.F) {
	f.Add([]byte(`{"prompt": "a", "stop": ["b", "c"], "logit_bias": {"3": 1.5}, "seed": -1}`))
	f.Add([]byte(`{"prompt_ids": [1, 2], "stop": "x", "top_p": 0.5}` + "\n\n{}"))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, data []byte) {
		reqs, err := readBatch(bytes.NewReader(data), "fuzz", request{})
		if err == nil && len(reqs) == 0 {
			t.Fatal("no requests and no error")
		}
	})
}

func TestWaitNamesItsFlags(t *testing.T) {
	held := gpuwaittest.Step{Used: 60, Holders: []gpuwait.Holder{{PID: os.Getpid(), Bytes: 60, Known: true}}}
	for flag, option := range map[string]gpuwait.ClearOption{
		"--timeout":    gpuwait.Timeout(time.Millisecond),
		"--patience=0": gpuwait.Patience(time.Millisecond),
	} {
		_, err := gpuwait.Clear(t.Context(), gpuwaittest.New(gpuwaittest.Device{
			Total: 100,
			Steps: []gpuwaittest.Step{held},
		}), gpuwait.Bytes(0), option)
		text := waitError(err).Error()
		assert.Contains(t, text, flag)
		assert.Contains(t, text, "a larger --ratio or --bytes")
		assert.NotContains(t, strings.ReplaceAll(text, "gpuwait: ", ""), "gpuwait.")
	}
}

func TestWaitIsReproducedAsCalled(t *testing.T) {
	cmd := waitCommand()
	require.NoError(t, cmd.ParseFlags([]string{"--timeout", "90s", "--ratio", "0.05"}))
	assert.Equal(t, "wait --timeout=1m30s --ratio=0.05 GPU-1", commandLine(cmd, []string{"GPU-1"}))
}
