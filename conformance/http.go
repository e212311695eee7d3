package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"unicode/utf8"
)

// wireClient asks a server directly, so that a property sees the bytes.
type wireClient struct {
	base  string
	model string
	http  *http.Client
}

// wire returns a client of the engine's server, which must speak OpenAI's API.
func (c *check) wire(l *live) (*wireClient, error) {
	if _, ok := l.engine().(endpoint); !ok {
		return nil, lacks(OpenAIAPI, "%s does not implement URL() string", typeName(l.engine()))
	}
	w := c.client(l)
	a, err := w.get(c, "/v1/models")
	if err != nil {
		return nil, err
	}
	if a.status == http.StatusNotFound {
		return nil, lacks(OpenAIAPI, "GET %s/v1/models: 404", w.base)
	}
	return w, nil
}

// client returns a client of an engine that has a URL.
func (c *check) client(l *live) *wireClient {
	w := &wireClient{
		base: strings.TrimSuffix(l.engine().(endpoint).URL(), "/"),
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}},
	}
	c.after = append(c.after, w.http.CloseIdleConnections)
	if m, ok := l.engine().(interface{ Model() string }); ok {
		w.model = m.Model()
	}
	return w
}

// answered is a response with what was asked.
type answered struct {
	request string
	status  int
	header  http.Header
	body    []byte
}

// String shows the exchange, so that it can be repeated with curl.
func (a answered) String() string {
	body := a.body
	if len(body) > 1500 {
		body = append(body[:1500:1500], "…"...)
	}
	return fmt.Sprintf("  asked    %s\n  answered %d %s\n           %s", a.request, a.status,
		a.header.Get("Content-Type"),
		strings.ReplaceAll(strings.TrimSpace(string(body)), "\n", "\n           "))
}

func (a answered) errorf(format string, args ...any) error {
	return fmt.Errorf("%s\n%s", fmt.Sprintf(format, args...), a)
}

func (w *wireClient) get(ctx context.Context, path string) (answered, error) {
	return w.do(ctx, http.MethodGet, path, nil)
}

// post sends a body as JSON, to which the model is added.
func (w *wireClient) post(ctx context.Context, path string, body map[string]any) (answered, error) {
	return w.do(ctx, http.MethodPost, path, w.encode(body))
}

func (w *wireClient) encode(body map[string]any) []byte {
	full := map[string]any{}
	if w.model != "" {
		full["model"] = w.model
	}
	for k, v := range body {
		full[k] = v
	}
	data, err := json.Marshal(full)
	if err != nil {
		panic(err) // bodies are this package's own
	}
	return data
}

func (w *wireClient) do(ctx context.Context, method, path string, body []byte) (answered, error) {
	res, err := w.send(ctx, method, path, body)
	if err != nil {
		return answered{}, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	a := answered{describe(method, w.base+path, body), res.StatusCode, res.Header, data}
	if err != nil {
		return a, a.errorf("the answer breaks off: %v", err)
	}
	return a, nil
}

func (w *wireClient) send(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, w.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	// A server may close an idle connection while this request is on its way. All of these may be
	// sent again; the entry says so to the transport, and an empty one is not sent.
	req.Header["Idempotency-Key"] = nil
	return w.http.Do(req)
}

func describe(method, url string, body []byte) string {
	if len(body) > 600 {
		body = append(body[:600:600], fmt.Sprintf("… (%d bytes)", len(body))...)
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", method, url, body))
}

// reply is an answer of OpenAI's API, or a chunk of one.
type reply struct {
	ID      string
	Object  string
	Choices []choice
	Usage   *usage
	Error   *apiError
}

type choice struct {
	Index        int
	Text         string
	Message      *chatMessage
	Delta        *chatMessage
	FinishReason *string `json:"finish_reason"`
}

type chatMessage struct{ Role, Content string }

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

type apiError struct {
	Message string
	Type    string
}

// text is what a choice adds, of a completion or of a chat.
func (x choice) text() string {
	switch {
	case x.Message != nil:
		return x.Message.Content
	case x.Delta != nil:
		return x.Delta.Content
	}
	return x.Text
}

// reply reads a good answer.
func (a answered) reply() (r reply, err error) {
	if a.status != http.StatusOK {
		return r, a.errorf("status %d", a.status)
	}
	if err := json.Unmarshal(a.body, &r); err != nil {
		return r, a.errorf("the answer is not JSON: %v", err)
	}
	if len(r.Choices) == 0 {
		return r, a.errorf("the answer has no choices")
	}
	return r, nil
}

// events reads a streamed answer's chunks and checks its framing.
func (a answered) events() (chunks []reply, err error) {
	if a.status != http.StatusOK {
		return nil, a.errorf("status %d", a.status)
	}
	if kind := a.header.Get("Content-Type"); !strings.HasPrefix(kind, "text/event-stream") {
		return nil, a.errorf("a stream has the content type %q", kind)
	}
	done := false
	for sc := bufio.NewScanner(bytes.NewReader(a.body)); sc.Scan(); {
		line := sc.Text()
		data, ok := strings.CutPrefix(line, "data:")
		switch {
		case line == "" || strings.HasPrefix(line, ":"):
			continue
		case !ok:
			return nil, a.errorf("a stream has the line %q", line)
		case done:
			return nil, a.errorf("a stream goes on after [DONE]")
		case strings.TrimSpace(data) == "[DONE]":
			done = true
			continue
		case !utf8.ValidString(data) || strings.ContainsRune(data, utf8.RuneError):
			return nil, a.errorf("a chunk has a character that was cut: %q", data)
		}
		var r reply
		if err := json.Unmarshal([]byte(data), &r); err != nil {
			return nil, a.errorf("a chunk is not JSON: %v: %s", err, data)
		}
		chunks = append(chunks, r)
	}
	if !done {
		return nil, a.errorf("a stream does not end with [DONE]")
	}
	return chunks, nil
}

// joined is a streamed answer as one: the text and the finish reason of its only choice.
func (a answered) joined() (text, finish string, chunks []reply, err error) {
	if chunks, err = a.events(); err != nil {
		return
	}
	for _, r := range chunks {
		if r.ID != chunks[0].ID || r.Object != chunks[0].Object {
			return text, finish, chunks, a.errorf("a stream has the ids %q and %q", chunks[0].ID, r.ID)
		}
		for _, x := range r.Choices {
			if finish != "" {
				return text, finish, chunks, a.errorf("a stream goes on after its finish reason")
			}
			text += x.text()
			if x.FinishReason != nil {
				finish = *x.FinishReason
			}
		}
	}
	if finish == "" {
		return text, finish, chunks, a.errorf("a stream has no finish reason")
	}
	return text, finish, chunks, nil
}

// refusal checks an answer that must be an error of a client, in OpenAI's shape.
func (a answered) refusal(statuses ...int) error {
	ok := len(statuses) == 0 && a.status >= 400 && a.status < 500
	for _, s := range statuses {
		ok = ok || a.status == s
	}
	if !ok {
		return a.errorf("status %d, want %v", a.status, statuses)
	}
	var r reply
	if err := json.Unmarshal(a.body, &r); err != nil {
		return a.errorf("an error is not JSON: %v", err)
	}
	if r.Error == nil || r.Error.Message == "" || r.Error.Type == "" {
		return a.errorf("an error has no message or no type")
	}
	return nil
}
