package conformance_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/conformance"
	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/server"
)

// fakeOllama is an engine that answers Ollama's API: each token is one character, four answers are
// worked on together. It has one defect, or none.
type fakeOllama struct {
	defect string
	*httptest.Server
	slots   chan struct{}
	stopped chan struct{}
}

const fakeModel = "fake"

func newFakeOllama(defect string) *fakeOllama {
	f := &fakeOllama{defect: defect, slots: make(chan struct{}, 4), stopped: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/tags", f.tags)
	mux.HandleFunc("POST /api/generate", f.answer)
	mux.HandleFunc("POST /api/chat", f.answer)
	f.Server = httptest.NewServer(mux)
	return f
}

func (f *fakeOllama) URL() string               { return f.Server.URL }
func (f *fakeOllama) Model() string             { return fakeModel }
func (f *fakeOllama) Protocol() server.Protocol { return server.ProtocolOllama }

func (f *fakeOllama) Shutdown(context.Context) error {
	close(f.stopped)
	f.CloseClientConnections()
	f.Close()
	return nil
}

func (f *fakeOllama) Generate(_ context.Context, reqs ...llm.Request) ([]llm.Output, error) {
	outs := make([]llm.Output, len(reqs))
	for i := range outs {
		outs[i].Completions = []llm.Completion{{Text: "é", FinishReason: llm.FinishLength}}
	}
	return outs, nil
}

func (f *fakeOllama) is(defect string) bool { return f.defect == defect }

func (f *fakeOllama) tags(w http.ResponseWriter, _ *http.Request) {
	name := fakeModel + ":latest"
	if f.is("tags list another model") {
		name = "another:latest"
	}
	f.write(w, map[string]any{"models": []map[string]string{{"name": name, "model": name}}})
}

// write sends one line. That a client has gone is no error of this fake.
func (f *fakeOllama) write(w io.Writer, v any) {
	data, _ := json.Marshal(v)
	_, _ = w.Write(append(data, '\n'))
	if flusher, ok := w.(http.Flusher); ok {
		flusher.Flush()
	}
}

type ollamaRequest struct {
	Model, Prompt string
	Stream        *bool
	Messages      []struct{ Role, Content string }
	Options       struct {
		NumPredict int `json:"num_predict"`
	}
}

// refuse answers a bad request.
func (f *fakeOllama) refuse(w http.ResponseWriter, status int, message string) {
	switch f.defect {
	case "a bad request is answered 500":
		status = http.StatusInternalServerError
	case "an error has another shape":
		w.WriteHeader(status)
		f.write(w, map[string]any{"message": message})
		return
	}
	w.WriteHeader(status)
	f.write(w, map[string]any{"error": message})
}

func (f *fakeOllama) answer(w http.ResponseWriter, r *http.Request) {
	var q ollamaRequest
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		f.refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	if q.Model != fakeModel && !f.is("any model is answered") {
		f.refuse(w, http.StatusNotFound, "no model "+q.Model)
		return
	}
	ctx := r.Context()
	if f.is("a disconnect is not noticed") {
		ctx = context.WithoutCancel(ctx)
	}
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	case <-ctx.Done():
		return
	case <-f.stopped:
		return
	}
	if q.Stream != nil && !*q.Stream {
		f.whole(w, r, q)
		return
	}
	f.stream(ctx, w, r, q)
}

const fakeAnswer = "Größe, naïve 日本 🙂. "

// line is one line of an answer.
func (f *fakeOllama) line(r *http.Request, text string) map[string]any {
	m := map[string]any{"model": fakeModel, "done": false}
	if strings.HasSuffix(r.URL.Path, "chat") {
		role := "assistant"
		if f.is("a chat has no role") {
			role = ""
		}
		m["message"] = map[string]string{"role": role, "content": text}
	} else {
		m["response"] = text
	}
	return m
}

func (f *fakeOllama) end(m map[string]any, q ollamaRequest, streamed bool) map[string]any {
	m["done"], m["done_reason"] = true, "length"
	m["prompt_eval_count"] = len(q.Prompt) + len(q.Messages)
	m["eval_count"] = q.Options.NumPredict
	switch {
	case f.is("a token is counted twice"):
		m["eval_count"] = q.Options.NumPredict + 1
	case f.is("the prompt is not counted"):
		delete(m, "prompt_eval_count")
	case f.is("every prompt counts the same"):
		m["prompt_eval_count"] = 10
	case f.is("a stream has another reason") && streamed:
		m["done_reason"] = "stop"
	}
	return m
}

func (f *fakeOllama) whole(w http.ResponseWriter, r *http.Request, q ollamaRequest) {
	w.Header().Set("Content-Type", "application/json")
	text := []rune(strings.Repeat(fakeAnswer, 20))[:q.Options.NumPredict]
	f.write(w, f.end(f.line(r, string(text)), q, false))
}

func (f *fakeOllama) stream(ctx context.Context, w http.ResponseWriter, r *http.Request, q ollamaRequest) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	if f.is("a stream is sent as events") {
		w.Header().Set("Content-Type", "text/event-stream")
	}
	text := []rune(fakeAnswer)
	for i := 0; i != q.Options.NumPredict && !f.is("a stream is one line"); i++ { // -1 is endless
		token := string(text[i%len(text)])
		if i == 3 && f.is("a stream loses a token") {
			continue
		}
		if n := len(token); n > 2 && f.is("a character is cut") {
			f.write(w, f.line(r, string(utf8.RuneError)))
			token = string(utf8.RuneError)
		}
		m := f.line(r, token)
		if f.is("every line has counts") {
			m["eval_count"] = i + 1
		}
		f.write(w, m)
		if q.Options.NumPredict < 0 {
			select {
			case <-ctx.Done():
				return
			case <-f.stopped:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}
	if f.is("a stream is one line") {
		f.write(w, f.end(f.line(r, string(text)), q, true))
		return
	}
	if f.is("no line is done") {
		return
	}
	last := f.end(f.line(r, ""), q, true)
	f.write(w, last)
	if f.is("two lines are done") {
		f.write(w, last)
	}
}

func checkOllama(t *testing.T, defect, only string, limit time.Duration) map[string]conformance.Result {
	t.Helper()
	open := func(context.Context) (*fakeOllama, error) { return newFakeOllama(defect), nil }
	report, err := conformance.Check(t.Context(), open, conformance.Only(regexp.MustCompile(only)),
		conformance.Limit(limit), conformance.Fixture(harness.WithoutDeviceMemory("it has none")))
	require.NoError(t, err)
	found := map[string]conformance.Result{}
	for _, r := range report.Results {
		found[r.Property] = r
	}
	return found
}

// A server that speaks Ollama's API as it should passes, and each defect is found by the property
// that is meant for it.
func TestOllamaProperties(t *testing.T) {
	const hang = 60 * time.Second
	found := checkOllama(t, "", "^ollama/", hang)
	require.Len(t, found, 8, "seven properties, and that the engine is gone")
	for name, r := range found {
		assert.Equal(t, conformance.Passes, r.Verdict, "%s: %s", name, r.Detail)
	}
	proven := map[string]bool{"lifecycle/gone after everything": true}
	for defect, property := range map[string]string{
		"tags list another model":       "ollama/models",
		"a stream is sent as events":    "ollama/stream is the answer",
		"a stream loses a token":        "ollama/stream is the answer",
		"a stream has another reason":   "ollama/stream is the answer",
		"a stream is one line":          "ollama/stream is the answer",
		"no line is done":               "ollama/stream is the answer",
		"two lines are done":            "ollama/stream is the answer",
		"a chat has no role":            "ollama/chat",
		"a token is counted twice":      "ollama/counts",
		"the prompt is not counted":     "ollama/counts",
		"every prompt counts the same":  "ollama/counts",
		"every line has counts":         "ollama/counts",
		"a character is cut":            "ollama/characters are whole",
		"any model is answered":         "ollama/errors",
		"a bad request is answered 500": "ollama/errors",
		"an error has another shape":    "ollama/errors",
		"a disconnect is not noticed":   "ollama/a disconnect aborts",
	} {
		t.Run(defect, func(t *testing.T) {
			limit := hang
			if property == "ollama/a disconnect aborts" {
				limit = 2 * time.Second // it hangs until then
			}
			r := checkOllama(t, defect, "^"+regexp.QuoteMeta(property)+"$", limit)[property]
			assert.Equal(t, conformance.Fails, r.Verdict, r.Detail)
			t.Logf("%.300s", r.Detail)
		})
		proven[property] = true
	}
	for name := range found {
		assert.True(t, proven[name], "%s finds no defect", name)
	}
}
