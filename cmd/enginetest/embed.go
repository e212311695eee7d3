package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/llm"
	"github.com/spf13/cobra"
)

func embedCommand() *cobra.Command {
	var (
		cfg        engine.Config
		dimensions int
	)
	cmd := &cobra.Command{
		Use:   "embed [--model DIR] TEXT…",
		Short: "Embed or classify texts with a checkpoint that pools",
		Long: `Embed texts, or classify them when the checkpoint has a layer of scores; without --model, embed with the bundled one.
A checkpoint of sentence-transformers says how it pools; a model that generates embeds with its last token. One JSON object per text is printed:
  {"prompt_token_ids":[…],"data":[0.1,…]}`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("give at least one text")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if cfg.Model == "" {
				cfg.Model = fixtures.Bundled()
			}
			if cfg.Task == llm.TaskGenerate {
				return usagef("--task generate: that is enginetest generate")
			}
			return embed(cmd, cfg, args, dimensions)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.IntVar(&dimensions, "dimensions", 0, "numbers of an embedding to keep (default: all)")
	engineFlags(f, &cfg)
	return cmd
}

// embed opens the engine for what the checkpoint is for, or to embed with one that generates.
func embed(cmd *cobra.Command, cfg engine.Config, texts []string, dimensions int) (err error) {
	ctx := cmd.Context()
	e, err := openPooling(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		err = errors.Join(err, e.Shutdown(ctx))
	}()
	reqs := make([]llm.PoolingRequest, len(texts))
	for i, text := range texts {
		reqs[i] = llm.PoolingRequest{Prompt: text, Pooling: llm.PoolingParams{Dimensions: dimensions}}
	}
	outs, err := e.Pool(ctx, reqs...)
	if err != nil {
		return err
	}
	return printVectors(cmd.OutOrStdout(), outs)
}

// openPooling opens a model to embed, or for the one thing that its head allows.
func openPooling(ctx context.Context, cfg engine.Config) (*engine.Engine, error) {
	if cfg.Task != "" {
		return engine.Open(ctx, cfg)
	}
	cfg.Task = llm.TaskEmbed
	e, err := engine.Open(ctx, cfg)
	if refused, ok := errors.AsType[*llm.ParamError](err); ok && refused.Field == "Task" {
		cfg.Task = llm.TaskClassify
		return engine.Open(ctx, cfg)
	}
	return e, err
}

func printVectors(w io.Writer, outs []llm.PoolingOutput) error {
	out := bufio.NewWriter(w)
	for _, o := range outs {
		err := json.NewEncoder(out).Encode(struct {
			PromptTokenIDs []int32   `json:"prompt_token_ids"`
			Data           []float32 `json:"data"`
		}{o.PromptTokenIDs, o.Data})
		if err != nil {
			return err
		}
	}
	return out.Flush()
}
