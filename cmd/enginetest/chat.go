package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/llm"
	"github.com/spf13/cobra"
)

func chatCommand() *cobra.Command {
	var (
		cfg    engine.Config
		req    request
		system string
		file   string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "chat [--model DIR] (MESSAGE | --messages FILE.json) …",
		Short: "Answer a conversation with the checkpoint's chat template",
		Long: `Answer a conversation with the chat template of a Hugging Face checkpoint; without --model, of the bundled one.

--messages takes a JSON list of {"role": "system|user|assistant", "content": "…"}; "-" is standard input. With --json, one object is
printed, as by generate.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if n := count(len(args) == 1, file != ""); n != 1 {
				return usagef("give either a message or --messages, not %d of them", n)
			}
			var messages []llm.Message
			if len(args) == 1 {
				messages = append(messages, llm.Message{Role: "user", Content: args[0]})
			} else {
				var err error
				if messages, err = readMessages(cmd, file); err != nil {
					return err
				}
			}
			if system != "" {
				messages = append([]llm.Message{{Role: "system", Content: system}}, messages...)
			}
			req.Prompt = new(string) // the conversation is the prompt
			sampling, err := req.engineRequest()
			if err != nil {
				return err
			}
			if cfg.Model == "" {
				cfg.Model = fixtures.Bundled()
			}
			return answer(cmd, cfg, messages, sampling.Sampling, asJSON)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&system, "system", "", "a system message before the others")
	f.StringVar(&file, "messages", "", "a file with a JSON list of messages; - is standard input")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	req.flags(f)
	engineFlags(f, &cfg)
	return cmd
}

// readMessages reads a JSON list of messages.
func readMessages(cmd *cobra.Command, file string) ([]llm.Message, error) {
	in := cmd.InOrStdin()
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, usageError{err}
		}
		defer f.Close()
		in = f
	}
	d := json.NewDecoder(in)
	d.DisallowUnknownFields()
	messages, err := unlessCancelled(cmd.Context(), func() (messages []llm.Message, err error) {
		err = d.Decode(&messages)
		return messages, err
	})
	if err != nil {
		return nil, usagef("--messages %s: want a JSON list of {\"role\", \"content\"}: %w", file, err)
	}
	return messages, nil
}

// answer runs one chat. The engine is shut down, and its error reported, whatever came before.
func answer(cmd *cobra.Command, cfg engine.Config, messages []llm.Message, params llm.SamplingParams,
	asJSON bool,
) (err error) {
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
	out, err := e.Chat(ctx, messages, params)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(cmd.OutOrStdout())
	if asJSON {
		if err := json.NewEncoder(w).Encode(newResult(out)); err != nil {
			return err
		}
		return w.Flush()
	}
	for _, c := range out.Completions {
		if _, err := fmt.Fprintln(w, strings.TrimSpace(c.Text)); err != nil {
			return err
		}
	}
	return w.Flush()
}
