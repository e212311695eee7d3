package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/enginetest/enginetest/internal/backoff"
	"github.com/enginetest/enginetest/llm"
)

// ollama is Ollama's server, over its own API.
var ollama = register(&api{
	protocol:   ProtocolOllama,
	healthPath: "/api/version",
	setUp:      ollamaSetUp,
	generate:   ollamaGenerate,
	stream:     ollamaStream,
	chat:       ollamaChat,
	embed:      ollamaEmbed,
	stats:      ollamaStats,
	unload:     ollamaUnload,
	pull:       ollamaPull,
})

var ollamaNames = wire("Temperature", "TopK", "TopP", "MinP", "TypicalP", "Seed", "PresencePenalty", "FrequencyPenalty",
	"Stop").with(names{"MaxTokens": "num_predict", "RepetitionPenalty": "repeat_penalty"})

// ollamaNeutral switches off what Ollama has on by default, and lets penalties see the whole
// context. For that its documentation has a repeat_last_n of -1, which v0.6.8 takes for 0.
var ollamaNeutral = map[string]any{
	"top_k": 0, "top_p": 1, "min_p": 0, "typical_p": 1, "repeat_penalty": 1,
	"repeat_last_n": 1 << 17,
}

// ollamaSetUp loads a GGUF file into the store, when the model is one.
func ollamaSetUp(ctx context.Context, s *Server) error {
	if !strings.HasSuffix(s.model, ".gguf") {
		return nil
	}
	path := s.model
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("server: %s: the model: %w", s.cfg.name, err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return fmt.Errorf("server: %s: %s: %w", s.cfg.name, path, err)
	}
	digest := "sha256:" + hex.EncodeToString(h.Sum(nil))
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if err := s.client.call(ctx, http.MethodPost, "/api/blobs/"+digest, io.Reader(f), nil); err != nil {
		return err
	}
	name := strings.ToLower(strings.TrimSuffix(filepath.Base(path), ".gguf"))
	body := map[string]any{"model": name, "files": map[string]string{filepath.Base(path): digest}, "stream": false}
	if s.cfg.template != "" {
		body["template"] = s.cfg.template
	}
	if err := s.client.post(ctx, "/api/create", body, nil); err != nil {
		return err
	}
	s.model = name
	return nil
}

func ollamaBody(s *Server, p llm.SamplingParams, stream bool) (map[string]any, error) {
	options, err := ollamaNames.body(ProtocolOllama, p)
	if err != nil {
		return nil, err
	}
	for k, v := range ollamaNeutral {
		if _, set := options[k]; !set {
			options[k] = v
		}
	}
	return map[string]any{"model": s.model, "stream": stream, "options": options}, nil
}

func ollamaPrompt(s *Server, r llm.Request, stream bool) (map[string]any, error) {
	if r.PromptTokenIDs != nil {
		return nil, &UnsupportedError{Protocol: ProtocolOllama, Verb: "prompt of token ids"}
	}
	body, err := ollamaBody(s, r.Sampling, stream)
	if err != nil {
		return nil, err
	}
	body["prompt"], body["raw"] = r.Prompt, true // as it is, without the model's template
	return body, nil
}

type ollamaAnswer struct {
	Response   string
	Message    struct{ Content string }
	Done       bool
	DoneReason string `json:"done_reason"`
}

func (a ollamaAnswer) reason() llm.FinishReason {
	switch {
	case !a.Done:
		return ""
	case a.DoneReason == "length":
		return llm.FinishLength
	case a.DoneReason == "stop":
		return llm.FinishStop
	}
	return llm.FinishAbort
}

func ollamaGenerate(ctx context.Context, s *Server, r llm.Request) (llm.Output, error) {
	body, err := ollamaPrompt(s, r, false)
	if err != nil {
		return llm.Output{}, err
	}
	var a ollamaAnswer
	if err := s.client.post(ctx, "/api/generate", body, &a); err != nil {
		return llm.Output{}, err
	}
	return llm.Output{Prompt: r.Prompt, Completions: []llm.Completion{{Text: a.Response, FinishReason: a.reason()}}},
		nil
}

func ollamaStream(ctx context.Context, s *Server, r llm.Request, yield func(llm.Delta) bool) error {
	body, err := ollamaPrompt(s, r, true)
	if err != nil {
		return err
	}
	return s.client.events(ctx, "/api/generate", body, false, func(event []byte) (bool, error) {
		var a ollamaAnswer
		if err := json.Unmarshal(event, &a); err != nil {
			return false, err
		}
		return yield(llm.Delta{Text: a.Response, FinishReason: a.reason()}) && !a.Done, nil
	})
}

func ollamaChat(ctx context.Context, s *Server, messages []llm.Message, p llm.SamplingParams) (llm.Output, error) {
	body, err := ollamaBody(s, p, false)
	if err != nil {
		return llm.Output{}, err
	}
	body["messages"] = chatMessages(messages)
	var a ollamaAnswer
	if err := s.client.post(ctx, "/api/chat", body, &a); err != nil {
		return llm.Output{}, err
	}
	return llm.Output{Completions: []llm.Completion{{Text: a.Message.Content, FinishReason: a.reason()}}}, nil
}

func ollamaEmbed(ctx context.Context, s *Server, texts []string) ([][]float32, error) {
	var res struct{ Embeddings [][]float32 }
	err := s.client.post(ctx, "/api/embed", map[string]any{"model": s.model, "input": texts}, &res)
	return res.Embeddings, err
}

func ollamaStats(ctx context.Context, s *Server) (Stats, error) {
	var res struct {
		Models []struct {
			Name     string
			Size     int64
			SizeVRAM int64 `json:"size_vram"`
		}
	}
	if err := s.client.get(ctx, "/api/ps", &res); err != nil {
		return Stats{}, err
	}
	st := Stats{Unknown: []string{"Running", "Waiting", "KVUsage"}}
	for _, m := range res.Models {
		st.Loaded = append(st.Loaded, LoadedModel{Name: m.Name, Bytes: m.Size, DeviceBytes: m.SizeVRAM})
	}
	return st, nil
}

// ollamaUnload asks for the model's end. It returns when the server lists the model no more and, if
// it was the only one, when the process that ran it is gone: the server ends its runners after it
// has struck them off the list.
func ollamaUnload(ctx context.Context, s *Server) error {
	if err := s.client.post(ctx, "/api/generate", map[string]any{"model": s.model, "keep_alive": 0}, nil); err != nil {
		return err
	}
	for looks := backoff.New(time.Millisecond, 50*time.Millisecond); ; {
		left, err := s.stillLoaded(ctx)
		if err != nil || left == "" {
			return err
		}
		if cause := looks.Wait(ctx); cause != nil {
			return fmt.Errorf("server: %s: after an unload %s: %w", s.cfg.name, left, cause)
		}
	}
}

// stillLoaded says what is left of the model in memory; "" when nothing is.
func (s *Server) stillLoaded(ctx context.Context) (string, error) {
	st, err := ollamaStats(ctx, s)
	if err != nil {
		return "", err
	}
	for _, m := range st.Loaded {
		if m.Name == tagged(s.model) {
			return fmt.Sprintf("%s is still loaded, with %d bytes, %d of them on GPUs", m.Name, m.Bytes, m.DeviceBytes),
				nil
		}
	}
	if runners := s.PIDs(); len(st.Loaded) == 0 && len(runners) > 1 {
		return fmt.Sprintf("no model is listed, and a process that ran one still lives: %v", runners[1:]), nil
	}
	return "", nil
}

// tagged is a model's name as the server lists it.
func tagged(name string) string {
	if strings.Contains(name[strings.LastIndexByte(name, '/')+1:], ":") {
		return name
	}
	return name + ":latest"
}

// ollamaPull downloads a model. Each status line that says something new counts as progress.
func ollamaPull(ctx context.Context, s *Server, model string) error {
	stall := s.cfg.stall
	if stall == 0 {
		stall = time.Minute
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	last := "nothing"
	watchdog := time.AfterFunc(stall, func() { cancel(errStalled) })
	defer watchdog.Stop()
	body := map[string]any{"model": model, "insecure": strings.HasPrefix(model, "http://")}
	err := s.client.events(ctx, "/api/pull", body, false, func(event []byte) (bool, error) {
		var p struct {
			Status           string
			Digest           string
			Total, Completed int64
		}
		if err := json.Unmarshal(event, &p); err != nil {
			return false, err
		}
		now := p.Status
		if p.Total > 0 {
			now = fmt.Sprintf("%s, %d of %d bytes", p.Status, p.Completed, p.Total)
		}
		if now != last {
			last = now
			watchdog.Reset(stall)
		}
		return p.Status != "success", nil
	})
	if errors.Is(err, errStalled) {
		return fmt.Errorf("server: %s: the download of %s has stalled: its last news for %s were: %s; server.StallTimeout sets the time: %w", s.cfg.name, model, stall, last, errStalled)
	}
	return err
}

var errStalled = errors.New("no progress")
