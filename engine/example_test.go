package engine_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/llm"
)

const model = "internal/modelrunner/testdata/tiny-llama"

func ExampleOpen() {
	ctx := context.Background()
	e, err := engine.Open(ctx, engine.Config{Model: model})
	if err != nil {
		fmt.Println(err)
		return
	}
	outs, err := e.Generate(ctx, engine.Request{
		PromptTokenIDs: []int32{214, 297},
		Sampling:       engine.SamplingParams{MaxTokens: 6},
	})
	if err != nil {
		fmt.Println(err)
	}
	fmt.Println(outs[0].Completions[0].TokenIDs, outs[0].Completions[0].FinishReason)
	fmt.Println("shutdown:", e.Shutdown(ctx), "held:", len(e.Holdings()))
	// Output:
	// [424 424 424 135 280 91] length
	// shutdown: <nil> held: 0
}

func ExampleEngine_Stream() {
	ctx := context.Background()
	e, err := engine.Open(ctx, engine.Config{Model: model})
	if err != nil {
		fmt.Println(err)
		return
	}
	for d, err := range e.Stream(ctx, engine.Request{
		PromptTokenIDs: []int32{306},
		Sampling:       engine.SamplingParams{MaxTokens: 4},
	}) {
		fmt.Println(d.TokenIDs, d.FinishReason, err)
	}
	fmt.Println(e.Shutdown(ctx))
	// Output:
	// [409]  <nil>
	// [409]  <nil>
	// [30]  <nil>
	// [409] length <nil>
	// <nil>
}

// One engine prefills, another one decodes.
func ExampleConnector() {
	dir, err := os.MkdirTemp("", "kv") // in /dev/shm it would be shared memory
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx, prompt := context.Background(), make([]int32, 100)
	open := func(role string) *engine.Engine {
		e, err := engine.Open(ctx, engine.Config{
			Model: model, Device: "cpu",
			Connector: engine.Connector{Path: dir + "/blocks", Role: role, Bytes: 1 << 20},
		})
		if err != nil {
			panic(err)
		}
		return e
	}
	p, d := open("producer"), open("consumer")
	_, err = p.Generate(ctx, engine.Request{PromptTokenIDs: prompt, Sampling: engine.SamplingParams{MaxTokens: 1}})
	fmt.Println("prefill:", err, "flush:", p.Flush(ctx), "published:", p.Stats().ConnectorStores, "blocks")

	outs, err := d.Generate(ctx, engine.Request{PromptTokenIDs: prompt, Sampling: engine.SamplingParams{MaxTokens: 6}})
	fmt.Println("decode:", err, "loaded:", outs[0].CachedTokens, "of", len(prompt), "tokens")
	fmt.Println(p.Shutdown(ctx), d.Shutdown(ctx))
	// Output:
	// prefill: <nil> flush: <nil> published: 6 blocks
	// decode: <nil> loaded: 96 of 100 tokens
	// <nil> <nil>
}

// A bad parameter names its field and its bound.
func ExampleParamError() {
	_, err := engine.Open(context.Background(), engine.Config{Model: model, MemoryUtilization: 1.5})
	var p *llm.ParamError
	fmt.Println(errors.As(err, &p), p.Field)
	fmt.Println(err)
	// Output:
	// true MemoryUtilization
	// engine: MemoryUtilization is 1.5, must be in (0, 1], or 0 for the default
}
