package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/llm"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const maxBatchLine = 64 << 20 // bytes; a line of a batch file is one prompt

func generateCommand() *cobra.Command {
	var (
		cfg    engine.Config
		req    request
		prompt string
		ids    string
		batch  string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "generate [--model DIR] (--prompt TEXT | --prompt-ids 1,2,3 | --batch FILE.jsonl) [--max-tokens N] …",
		Short: "Generate tokens from a checkpoint; without --model, from the bundled one",
		Long: `Generate tokens from a Hugging Face checkpoint (a folder with config.json and safetensors); without --model, from the bundled one.

--batch takes one JSON object a line: {"prompt": "…" | "prompt_ids": [1, 2], "max_tokens": 16, "seed": 1, …}, every sampling flag under its
name with underscores; the flags are the defaults of all lines, and the lines run together. "-" is standard input.

With --json, one object a prompt is printed, in order:
  {"prompt_token_ids":[…],"outputs":[{"token_ids":[…],"text":"…","finish_reason":"length|stop|abort","logprobs":[{"<id>":-1.23,…},…]}],
   "prompt_logprobs":[null,{…},…]}`,
		Args: noArguments(": a prompt's flag is --prompt"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			given := func(name string) bool { return cmd.Flags().Changed(name) }
			if n := count(given("prompt"), given("prompt-ids"), given("batch")); n != 1 {
				return usagef("give one of --prompt, --prompt-ids and --batch, not %d", n)
			}
			if !asJSON && (given("logprobs") || given("prompt-logprobs")) {
				return usagef("--logprobs and --prompt-logprobs need --json: text has no place for them")
			}
			reqs, err := unlessCancelled(cmd.Context(), func() ([]engine.Request, error) {
				return requests(cmd.InOrStdin(), req, prompt, ids, batch, given)
			})
			if err != nil {
				return err
			}
			if cfg.Model == "" {
				cfg.Model = fixtures.Bundled()
			}
			return generate(cmd, cfg, reqs, asJSON)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&prompt, "prompt", "", "the prompt's text")
	f.StringVar(&ids, "prompt-ids", "", "the prompt as token ids: 1,2,3")
	f.StringVar(&batch, "batch", "", "a file with one JSON object a line; - is standard input")
	f.BoolVar(&asJSON, "json", false, "print JSON, one object a prompt")
	req.flags(f)
	engineFlags(f, &cfg)
	return cmd
}

// engineFlags makes a flag of every field of the engine's Config that a command line can set.
func engineFlags(f *pflag.FlagSet, cfg *engine.Config) {
	f.StringVar(&cfg.Model, "model", "", "folder of a Hugging Face checkpoint (default: the bundled one)")
	f.StringVar(&cfg.Device, "device", "", "cpu, cuda, cuda:1, cuda:GPU-…, cuda:0,1 (default: a GPU when there is one)")
	f.StringVar((*string)(&cfg.Task), "task", "", "generate, embed or classify (default: what the checkpoint says)")
	f.StringVar(&cfg.Pooling, "pooling", "",
		"hidden state that is an embedding: last, mean, cls or pooler (default: what the checkpoint says)")
	f.IntVar(&cfg.TensorParallel, "tensor-parallel", 1, "devices that share the model; the CPU emulates them")
	f.IntVar(&cfg.Threads, "threads", 0, "CPU device: worker threads of all devices (default: all)")
	f.IntVar(&cfg.BlockSize, "block-size", 0, "tokens in a KV block (default 16)")
	f.IntVar(&cfg.MaxModelLen, "max-model-len", 0,
		"longest prompt and output together (default: what the checkpoint and the KV cache allow)")
	f.IntVar(&cfg.MaxNumSeqs, "max-num-seqs", 0, "sequences in one step (default 64)")
	f.IntVar(&cfg.MaxWaitingSeqs, "max-waiting-seqs", 0, "sequences of all unfinished requests (default 32768)")
	f.IntVar(&cfg.MaxNumBatchedTokens, "max-num-batched-tokens", 0, "tokens in one step (default 2048)")
	f.Float64Var(&cfg.MemoryUtilization, "memory-utilization", 0,
		"share of the device's memory for weights and KV cache, in (0, 1]")
	f.Int64Var(&cfg.KVCacheBytes, "kv-cache-bytes", 0, "size of the KV cache; overrides --memory-utilization")
	f.Int64Var(&cfg.OffloadBytes, "offload-bytes", 0,
		"host memory for KV blocks that the device has no room for; 0 is off")
	f.StringVar(&cfg.Connector.Path, "kv-connector", "", "file through which KV blocks are shared with other engines; \"\" is off")
	f.StringVar(&cfg.Connector.Role, "kv-connector-role", "", "producer, consumer or both (default both)")
	f.Int64Var(&cfg.Connector.Bytes, "kv-connector-bytes", 0, "room for blocks in the file (default: that of the KV cache)")
	f.StringVar(&cfg.Speculative.Method, "speculative-method", "",
		"ngram or draft_model (default: what the flags below ask for)")
	f.StringVar(&cfg.Speculative.Model, "speculative-model", "", "folder of a smaller checkpoint that drafts for the model")
	f.IntVar(&cfg.Speculative.NumTokens, "num-speculative-tokens", 0, "tokens that are proposed for each step; 0 is off")
	f.IntVar(&cfg.Speculative.PromptLookupMin, "prompt-lookup-min", 0,
		"ngram: last tokens of a text that must have come before (default 5)")
	f.IntVar(&cfg.Speculative.PromptLookupMax, "prompt-lookup-max", 0, "ngram: the most that are compared (default 5)")
	f.BoolVar(&cfg.DisablePrefixCache, "disable-prefix-cache", false, "compute every prompt in full")
	f.BoolVar(&cfg.DisableChunkedPrefill, "disable-chunked-prefill", false, "a prompt is computed in one step")
	f.BoolVar(&cfg.SkipTokenizer, "skip-tokenizer", false, "token ids only")
}

// unlessCancelled reads, but not on when ctx is done: a pipe may have no writer, and a signal must
// end the command all the same. The reader is then left behind, for the end of the process.
func unlessCancelled[T any](ctx context.Context, read func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		v, err := read()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

// requests reads what to generate: one prompt from the flags, or a batch whose lines have the flags
// as defaults.
func requests(stdin io.Reader, flags request, prompt, ids, batch string,
	given func(string) bool,
) ([]engine.Request, error) {
	if given("batch") {
		in := stdin
		if batch != "-" {
			file, err := os.Open(batch)
			if err != nil {
				return nil, usageError{err}
			}
			defer file.Close()
			in = file
		}
		return readBatch(in, cmp.Or(batch, "batch"), flags)
	}
	if given("prompt") {
		flags.Prompt = &prompt
	} else {
		list, err := parseIDs(ids)
		if err != nil {
			return nil, usagef("--prompt-ids: %w", err)
		}
		flags.PromptIDs = &list
	}
	r, err := flags.engineRequest()
	return []engine.Request{r}, err
}

// readBatch reads one request a line; blank lines are skipped. An error names the line.
func readBatch(in io.Reader, name string, defaults request) ([]engine.Request, error) {
	var out []engine.Request
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxBatchLine)
	n := 1
	for ; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		var r request
		if err := strictUnmarshal(line, &r); err != nil {
			return nil, usagef("%s:%d: %w", name, n, err)
		}
		r.fill(defaults)
		req, err := r.engineRequest()
		if err != nil {
			return nil, usagef("%s:%d: %w", name, n, err)
		}
		req.ID = fmt.Sprintf("%s:%d", name, n) // the engine's errors name it
		out = append(out, req)
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return nil, usagef("%s:%d: %w: a line holds at most %d bytes", name, n, err, maxBatchLine)
	} else if err != nil {
		return nil, usagef("%s: %w", name, err)
	}
	if len(out) == 0 {
		return nil, usagef("%s: no prompts", name)
	}
	return out, nil
}

// strictUnmarshal refuses unknown fields and anything after the value.
func strictUnmarshal(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		var wrong *json.UnmarshalTypeError
		switch {
		case errors.Is(err, io.ErrUnexpectedEOF):
			return errors.New("the JSON ends too early")
		case errors.As(err, &wrong):
			return &kindError{wrong.Field, wrong.Value, jsonName(wrong.Type)}
		}
		return errors.New(clip(err.Error()))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	return nil
}

// kindError is a JSON value of another kind than its field.
type kindError struct{ field, got, want string }

func (e *kindError) Error() string {
	return fmt.Sprintf("%s is a JSON %s, want %s", cmp.Or(e.field, "the line"), e.got, e.want)
}

// jsonName is what JSON calls a Go type.
func jsonName(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "an integer of " + strconv.Itoa(t.Bits()) + " bits"
	case reflect.Float64:
		return "a number"
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "an array"
	}
	return "an object"
}

// clip keeps a message readable that quotes its input.
func clip(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// generate runs the requests together and prints them in order. The engine is shut down, and its
// error reported, whatever came before.
func generate(cmd *cobra.Command, cfg engine.Config, reqs []engine.Request, asJSON bool) (err error) {
	ctx := cmd.Context()
	e, err := engine.Open(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		err = errors.Join(err, e.Shutdown(ctx))
	}()
	stop := showProgress(cmd.ErrOrStderr(), func() (done, total int64) { return e.Stats().OutputTokens, wanted(reqs) })
	outs, err := e.Generate(ctx, reqs...)
	stop()
	if err != nil {
		return err
	}
	_, noText := e.Decode(nil)
	w := bufio.NewWriter(cmd.OutOrStdout())
	for i, out := range outs {
		if asJSON {
			err = json.NewEncoder(w).Encode(newResult(out))
		} else {
			err = printText(w, out, reqs, i, noText == nil)
		}
		if err != nil {
			return err
		}
	}
	return w.Flush()
}

// wanted is how many tokens the requests may have at most.
func wanted(reqs []engine.Request) (n int64) {
	for _, r := range reqs {
		n += int64(cmp.Or(r.Sampling.MaxTokens, 16)) * int64(cmp.Or(r.Sampling.N, 1))
	}
	return n
}

// printText prints the text of each output of the i-th request, or its token ids when the
// checkpoint has no tokenizer.
func printText(w io.Writer, out engine.Output, reqs []engine.Request, i int, hasText bool) error {
	for _, c := range out.Completions {
		text := reqs[i].Prompt + c.Text
		if !hasText {
			ids := make([]string, len(c.TokenIDs))
			for k, id := range c.TokenIDs {
				ids[k] = strconv.Itoa(int(id))
			}
			text = strings.Join(ids, ",")
		}
		if len(reqs) > 1 || len(out.Completions) > 1 {
			text = fmt.Sprintf("[request-%d.%d] %s", i+1, c.Index, text)
		}
		if _, err := fmt.Fprintln(w, text); err != nil {
			return err
		}
	}
	return nil
}

// result is the JSON form of an engine.Output.
type result struct {
	PromptTokenIDs []int32          `json:"prompt_token_ids"`
	Outputs        []resultOutput   `json:"outputs"`
	PromptLogprobs []*logprobObject `json:"prompt_logprobs,omitempty"`
}

type resultOutput struct {
	TokenIDs     []int32          `json:"token_ids"`
	Text         string           `json:"text"`
	FinishReason llm.FinishReason `json:"finish_reason"`
	StopReason   string           `json:"stop_reason,omitempty"`
	Logprobs     []*logprobObject `json:"logprobs,omitempty"`
}

func newResult(out engine.Output) result {
	r := result{PromptTokenIDs: nonNil(out.PromptTokenIDs), PromptLogprobs: logprobObjects(out.PromptLogprobs)}
	for _, c := range out.Completions {
		r.Outputs = append(r.Outputs, resultOutput{
			TokenIDs: nonNil(c.TokenIDs), Text: c.Text, FinishReason: c.FinishReason, StopReason: c.StopReason,
			Logprobs: logprobObjects(c.Logprobs),
		})
	}
	return r
}

func nonNil(ids []int32) []int32 {
	if ids == nil {
		return []int32{}
	}
	return ids
}

// logprobObject prints as {"<id>": logprob, …}, best first; an impossible token's −∞, which JSON
// lacks, as the lowest float32.
type logprobObject []llm.Logprob

func logprobObjects(positions [][]llm.Logprob) []*logprobObject {
	if positions == nil {
		return nil
	}
	out := make([]*logprobObject, len(positions))
	for i, p := range positions {
		if p != nil {
			out[i] = (*logprobObject)(&p)
		}
	}
	return out
}

// MarshalJSON keeps the order of the list.
func (l *logprobObject) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, lp := range *l {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = strconv.AppendInt(b, int64(lp.TokenID), 10)
		b = append(b, '"', ':')
		b = strconv.AppendFloat(b, float64(max(lp.Logprob, -math.MaxFloat32)), 'g', -1, 32)
	}
	return append(b, '}'), nil
}

func count(conditions ...bool) (n int) {
	for _, c := range conditions {
		if c {
			n++
		}
	}
	return n
}
