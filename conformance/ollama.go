package conformance

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	ollamaGeneratePath = "/api/generate"
	ollamaChatPath     = "/api/chat"
)

// ollamaProperties are those of a server's bytes, in Ollama's own API.
var ollamaProperties = []property{
	{
		name:  "ollama/models",
		why:   "clients choose a model from this list, and the one that answers must be in it",
		needs: []Capability{OllamaAPI},
		check: onOllama(ollamaModels),
	},
	{
		name:  "ollama/stream is the answer",
		why:   "clients join lines of JSON until one is done: framing, order and one last line are all they have",
		needs: []Capability{OllamaAPI},
		check: onOllama(ollamaStream),
	},
	{
		name:  "ollama/chat",
		why:   "a chat's lines have another shape, and are joined in the same way",
		needs: []Capability{OllamaAPI},
		check: onOllama(ollamaChat),
	},
	{
		name:  "ollama/counts",
		why:   "callers measure speed and price by the counts: they are those of the prompt and of the answer",
		needs: []Capability{OllamaAPI},
		check: onOllama(ollamaCounts),
	},
	{
		name:  "ollama/characters are whole",
		why:   "a character that is cut between two lines of a stream is lost to a client that reads them one by one",
		needs: []Capability{OllamaAPI},
		check: onOllama(ollamaCharacters),
	},
	{
		name:  "ollama/errors",
		why:   "a client that sent nonsense must learn it by a status and a message, and the next request must be answered",
		needs: []Capability{OllamaAPI},
		check: onOllama(ollamaErrors),
	},
	{
		name:  "ollama/a disconnect aborts",
		why:   "a client that hangs up has no other way to cancel, and its work must not keep others waiting",
		needs: []Capability{OllamaAPI},
		check: onOllama(ollamaDisconnect),
	},
}

// onOllama starts the shared engine and a client for its server.
func onOllama(f func(*check, *live, *wireClient) error) func(*check) error {
	return func(c *check) error {
		l, err := c.engine()
		if err != nil {
			return err
		}
		return f(c, l, c.client(l))
	}
}

// ollamaLine is an answer of Ollama's API, or a line of one.
type ollamaLine struct {
	Model      string
	Response   string
	Message    *chatMessage
	Done       bool
	DoneReason string `json:"done_reason"`
	Prompt     int    `json:"prompt_eval_count"`
	Eval       int    `json:"eval_count"`
	Error      string
}

// text is what a line adds, of a completion or of a chat.
func (x ollamaLine) text() string {
	if x.Message != nil {
		return x.Message.Content
	}
	return x.Response
}

// ollamaBody asks for the i-th prompt as it is, without the model's template.
func (c *check) ollamaBody(i, maxTokens int) map[string]any {
	return map[string]any{
		"prompt": c.s.opts.prompts[i%len(c.s.opts.prompts)], "raw": true,
		"options": map[string]any{"num_predict": maxTokens, "temperature": 0},
	}
}

// ollama reads a whole answer.
func (a answered) ollama() (x ollamaLine, err error) {
	if a.status != http.StatusOK {
		return x, a.errorf("status %d", a.status)
	}
	if err := json.Unmarshal(a.body, &x); err != nil {
		return x, a.errorf("the answer is not one JSON object: %v", err)
	}
	if !x.Done || x.DoneReason == "" {
		return x, a.errorf("a whole answer is not done, or has no done_reason")
	}
	return x, nil
}

// ollamaLines reads a streamed answer, checks its framing, and joins it in its last line.
func (a answered) ollamaLines() (whole ollamaLine, lines []ollamaLine, err error) {
	if a.status != http.StatusOK {
		return whole, nil, a.errorf("status %d", a.status)
	}
	if kind := a.header.Get("Content-Type"); !strings.HasPrefix(kind, "application/x-ndjson") {
		return whole, nil, a.errorf("a stream has the content type %q", kind)
	}
	text := ""
	for data := range bytes.Lines(a.body) {
		var x ollamaLine
		if err := json.Unmarshal(data, &x); err != nil {
			return whole, nil, a.errorf("a line is not JSON: %v: %q", err, data)
		}
		switch {
		case !bytes.HasSuffix(data, []byte("\n")):
			return whole, nil, a.errorf("the last line has no end")
		case !utf8.Valid(data):
			return whole, nil, a.errorf("a line is not UTF-8: %q", data)
		case len(lines) > 0 && lines[len(lines)-1].Done:
			return whole, nil, a.errorf("a stream goes on after the line that is done: %s", data)
		case !x.Done && (x.Prompt > 0 || x.Eval > 0):
			return whole, nil, a.errorf("a line that is not the last has counts: %s", data)
		}
		lines, text = append(lines, x), text+x.text()
	}
	if len(lines) == 0 || !lines[len(lines)-1].Done {
		return whole, lines, a.errorf("a stream has no line that is done")
	}
	whole = lines[len(lines)-1]
	whole.Response, whole.Message = text, nil
	return whole, lines, nil
}

// ollamaBoth asks for an answer as a whole, and for the same one as a stream.
func (c *check) ollamaBoth(w *wireClient, path string, body map[string]any) (whole, streamed ollamaLine, s answered,
	err error,
) {
	body["stream"] = false
	a, err := w.post(c, path, body)
	if err != nil {
		return
	}
	if whole, err = a.ollama(); err != nil {
		return
	}
	delete(body, "stream") // it is Ollama's default
	if s, err = w.post(c, path, body); err != nil {
		return
	}
	streamed, lines, err := s.ollamaLines()
	if err == nil && len(lines) < 2 && streamed.Eval > 1 {
		err = s.errorf("a stream of %d tokens in one line is no stream", streamed.Eval)
	}
	return whole, streamed, s, err
}

func ollamaModels(c *check, _ *live, w *wireClient) error {
	a, err := w.get(c, "/api/tags")
	if err != nil {
		return err
	}
	var list struct {
		Models []struct{ Name, Model string }
	}
	if err := json.Unmarshal(a.body, &list); err != nil || a.status != http.StatusOK {
		return a.errorf("not a list of models: %v", err)
	}
	for _, m := range list.Models {
		if m.Name == w.model || m.Name == w.model+":latest" {
			return nil
		}
	}
	return a.errorf("the list has no %q, which answers", w.model)
}

func ollamaStream(c *check, _ *live, w *wireClient) error {
	for i := range 4 {
		whole, streamed, s, err := c.ollamaBoth(w, ollamaGeneratePath, c.ollamaBody(i, 32))
		if err != nil {
			return err
		}
		if err := c.sameLines(whole, streamed, s); err != nil {
			return err
		}
	}
	return nil
}

// sameLines compares an answer with its stream.
func (c *check) sameLines(whole, streamed ollamaLine, s answered) error {
	switch {
	case streamed.Model != whole.Model:
		return s.errorf("the stream is of the model %q, and the whole answer of %q", streamed.Model, whole.Model)
	case c.s.opts.tolerance == 0 && (streamed.Response != whole.text() || streamed.DoneReason != whole.DoneReason):
		return s.errorf("the stream is %q (%s), and the whole answer is %q (%s)", streamed.Response, streamed.DoneReason,
			whole.text(), whole.DoneReason)
	}
	return nil
}

func ollamaChat(c *check, _ *live, w *wireClient) error {
	body := map[string]any{
		"messages": []map[string]string{{"role": "user", "content": "What is the capital of France?"}},
		"options":  map[string]any{"num_predict": 16, "temperature": 0},
	}
	whole, streamed, s, err := c.ollamaBoth(w, ollamaChatPath, body)
	if err != nil {
		return err
	}
	if whole.Message == nil || whole.Message.Role != "assistant" {
		return s.errorf("the whole answer is no message of the assistant")
	}
	_, lines, err := s.ollamaLines()
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(lines, func(x ollamaLine) bool {
		return x.Message == nil || x.Message.Role != "assistant"
	}); i >= 0 {
		return s.errorf("line %d is no message of the assistant", i+1)
	}
	return c.sameLines(whole, streamed, s)
}

func ollamaCounts(c *check, _ *live, w *wireClient) error {
	for i := range 4 {
		n := 5 + 3*i
		whole, streamed, s, err := c.ollamaBoth(w, ollamaGeneratePath, c.ollamaBody(i, n))
		if err != nil {
			return err
		}
		for _, x := range []ollamaLine{whole, streamed} {
			switch {
			case x.Prompt <= 0 || x.Eval <= 0:
				return s.errorf("prompt_eval_count is %d and eval_count %d", x.Prompt, x.Eval)
			case x.DoneReason == "length" && x.Eval != n:
				return s.errorf("eval_count is %d of an answer that num_predict ended at %d tokens", x.Eval, n)
			case x.Eval > n:
				return s.errorf("eval_count is %d, above num_predict %d", x.Eval, n)
			case x.Prompt != whole.Prompt:
				return s.errorf("prompt_eval_count of the same prompt is %d and then %d", whole.Prompt, x.Prompt)
			}
		}
	}
	short, long := c.ollamaBody(0, 1), c.ollamaBody(0, 1)
	long["prompt"] = fmt.Sprint(short["prompt"], " ", short["prompt"])
	a, _, _, err := c.ollamaBoth(w, ollamaGeneratePath, short)
	if err != nil {
		return err
	}
	b, _, s, err := c.ollamaBoth(w, ollamaGeneratePath, long)
	if err == nil && b.Prompt <= a.Prompt {
		err = s.errorf("prompt_eval_count is %d, and %d of a prompt twice as long", a.Prompt, b.Prompt)
	}
	return err
}

// ollamaCharacters draws at a high temperature, where a model writes what it rarely does.
func ollamaCharacters(c *check, _ *live, w *wireClient) error {
	for i, prompt := range []string{"naïve café, déjà vu: naïve ca", "日本語 日本語 日", "🙂🙃🙂🙃🙂", "Ελληνικά Ελλ"} {
		body := map[string]any{
			"prompt": prompt, "raw": true,
			"options": map[string]any{"num_predict": 48, "temperature": 1.5, "seed": i + 1},
		}
		whole, streamed, s, err := c.ollamaBoth(w, ollamaGeneratePath, body)
		if err != nil {
			return err
		}
		cut := strings.Count(streamed.Response, string(utf8.RuneError))
		if cut > strings.Count(whole.Response, string(utf8.RuneError)) {
			return s.errorf("the stream has %d characters that were cut; the whole answer is %q", cut, whole.Response)
		}
		if err := c.sameLines(whole, streamed, s); err != nil {
			return err
		}
	}
	return nil
}

func ollamaErrors(c *check, _ *live, w *wireClient) error {
	with := func(key string, value any) []byte {
		b := c.ollamaBody(0, 4)
		b[key] = value
		return w.encode(b)
	}
	var errs []error
	for _, x := range []struct {
		what, path string
		body       []byte
	}{
		{"a body that is not JSON", ollamaGeneratePath, []byte("{")},
		{"an empty body", ollamaGeneratePath, nil},
		{"a list in place of an object", ollamaChatPath, []byte("[1]")},
		{"a number in place of a text", ollamaGeneratePath, with("prompt", 7)},
		{"another model", ollamaGeneratePath, with("model", "no-such-model")},
		{"another model of a chat", ollamaChatPath, with("model", "no-such-model")},
	} {
		a, err := w.do(c, http.MethodPost, x.path, x.body)
		if err == nil {
			err = a.ollamaRefusal()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", x.what, err))
		}
	}
	body := c.ollamaBody(0, 4)
	body["stream"] = false
	a, err := w.post(c, ollamaGeneratePath, body)
	if err == nil {
		_, err = a.ollama()
	}
	if err != nil {
		errs = append(errs, fmt.Errorf("after bad requests, a good one: %w", err))
	}
	return errors.Join(errs...)
}

// ollamaRefusal checks an answer that must be an error of a client, in Ollama's shape.
func (a answered) ollamaRefusal() error {
	if a.status < 400 || a.status >= 500 {
		return a.errorf("status %d, want 4xx", a.status)
	}
	var x struct{ Error string }
	if err := json.Unmarshal(a.body, &x); err != nil || x.Error == "" {
		return a.errorf(`want {"error": "…"}: %v`, err)
	}
	return nil
}

// ollamaDisconnect hangs up on more endless answers than a server works on together: the next
// request waits for them if they go on.
func ollamaDisconnect(c *check, l *live, w *wireClient) error {
	for i := range 16 {
		res, err := w.send(c, http.MethodPost, ollamaGeneratePath, w.encode(c.ollamaBody(i, -1)))
		if err != nil {
			return fmt.Errorf("client %d, after %d that hung up: %w", i+1, i, err)
		}
		_, err = bufio.NewReader(res.Body).ReadString('\n')
		_ = res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK {
			return fmt.Errorf("client %d, after %d that hung up: status %d, %w", i+1, i, res.StatusCode, err)
		}
	}
	body := c.ollamaBody(0, 4)
	body["stream"] = false
	a, err := w.post(c, ollamaGeneratePath, body)
	if err != nil {
		return fmt.Errorf("after 16 clients that hung up in the middle of a stream: %w", err)
	}
	if _, err = a.ollama(); err != nil {
		return err
	}
	if _, known, err := l.activity(c); err != nil || !known {
		c.notef("16 hung up, and the next request was answered; the server does not tell what it works on")
		return err
	}
	return c.freed(l)
}
