// Package openai_test runs the official OpenAI Go client against enginetest serve. It is a module of its own, because the client is heavy:
//
//	cd compat/openai && go test -count=1 ./...   # the cache does not see the server's sources
package openai_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// start builds and starts the server; the test ends it, and fails when it does not exit well.
func start(t *testing.T) openai.Client {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "enginetest")
	build := exec.Command("go", "build", "-o", exe, "./cmd/enginetest")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(exe, "serve", "--port", "0")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		defer kill.Stop()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the server's end: %v", err)
		}
	})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	var ready struct{ URL string }
	if err == nil {
		err = json.Unmarshal(line, &ready)
	}
	if err != nil {
		t.Fatalf("no address: %v", err)
	}
	return openai.NewClient(option.WithBaseURL(ready.URL+"/v1/"), option.WithAPIKey("none"), option.WithMaxRetries(0))
}

func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

func TestOfficialClient(t *testing.T) {
	client := start(t)
	ctx := t.Context()
	chat := openai.ChatCompletionNewParams{
		Model: "bundled", Temperature: openai.Float(0), MaxCompletionTokens: openai.Int(8), Logprobs: openai.Bool(true), TopLogprobs: openai.Int(2),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("What is 12+30?")},
	}

	t.Run("models", func(t *testing.T) {
		page, err := client.Models.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "the model", page.Data[0].ID, "bundled")
	})

	t.Run("completion", func(t *testing.T) {
		c, err := client.Completions.New(ctx, openai.CompletionNewParams{
			Model: "bundled", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("2+3=")}, Temperature: openai.Float(0), Logprobs: openai.Int(2),
		})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "the text", c.Choices[0].Text, "5")
		equal(t, "the finish reason", c.Choices[0].FinishReason, "stop")
		equal(t, "the first token", c.Choices[0].Logprobs.Tokens[0], "5")
		equal(t, "the usage", c.Usage.TotalTokens, 6)
	})

	t.Run("stream of a completion", func(t *testing.T) {
		stream := client.Completions.NewStreaming(ctx, openai.CompletionNewParams{
			Model: "bundled", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("The lighthouse")}, MaxTokens: openai.Int(20), Seed: openai.Int(1),
			StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
		})
		text, tokens := "", int64(0)
		for stream.Next() {
			for _, c := range stream.Current().Choices {
				text += c.Text
			}
			tokens = stream.Current().Usage.CompletionTokens
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		equal(t, "the number of tokens", tokens, 20)
		equal(t, "an empty text", text == "", false)
	})

	t.Run("chat", func(t *testing.T) {
		c, err := client.Chat.Completions.New(ctx, chat)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "the answer", c.Choices[0].Message.Content, " 42")
		lp := c.Choices[0].Logprobs.Content[0]
		equal(t, "the number of top logprobs", len(lp.TopLogprobs), 2)
		equal(t, "the likeliest token", lp.TopLogprobs[0].Token, lp.Token)
		equal(t, "the token's first byte", lp.Bytes[0], int64(lp.Token[0]))
	})

	t.Run("stream of a chat", func(t *testing.T) {
		stream := client.Chat.Completions.NewStreaming(ctx, chat)
		acc := openai.ChatCompletionAccumulator{}
		for stream.Next() {
			if !acc.AddChunk(stream.Current()) {
				t.Fatal("the client cannot put the chunks together")
			}
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		equal(t, "the answer", acc.Choices[0].Message.Content, " 42")
		equal(t, "the role", acc.Choices[0].Message.Role, "assistant")
		equal(t, "the finish reason", acc.Choices[0].FinishReason, "stop")
	})

	t.Run("errors", func(t *testing.T) {
		bad := chat
		bad.Temperature = openai.Float(9)
		_, err := client.Chat.Completions.New(ctx, bad)
		var api *openai.Error
		if !errors.As(err, &api) {
			t.Fatalf("not an API error: %v", err)
		}
		equal(t, "the status", api.StatusCode, 400)
		equal(t, "the parameter", api.Param, "temperature")
		equal(t, "the code", api.Code, "invalid_value")
		_, err = client.Embeddings.New(ctx, openai.EmbeddingNewParams{Model: "bundled", Input: openai.EmbeddingNewParamsInputUnion{OfString: openai.String("a")}})
		if !errors.As(err, &api) {
			t.Fatalf("not an API error: %v", err)
		}
		equal(t, "the status of embeddings", api.StatusCode, 501)
	})
}
