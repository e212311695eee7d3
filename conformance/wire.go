package conformance

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/enginetest/enginetest/llm"
)

const (
	completionsPath = "/v1/completions"
	chatPath        = "/v1/chat/completions"
)

// wireProperties are those of a server's bytes, in OpenAI's API.
var wireProperties = []property{
	{
		name:  "wire/models",
		why:   "clients ask for the model's name before anything else",
		needs: []Capability{OpenAIAPI},
		check: onWire(wireModels),
	},
	{
		name:  "wire/completion",
		why:   "the answer over HTTP is the engine's answer, with its usage and its finish reason",
		needs: []Capability{OpenAIAPI},
		check: onWire(wireCompletion),
	},
	{
		name:  "wire/stream is the answer",
		why:   "clients join chunks: framing, order, one finish reason and [DONE] are all they have",
		needs: []Capability{OpenAIAPI},
		check: onWire(wireStream),
	},
	{
		name:  "wire/usage of a stream",
		why:   "callers are billed by it: the last chunk has it once, the others not, and it is that of the whole answer",
		needs: []Capability{OpenAIAPI},
		check: onWire(wireStreamUsage),
	},
	{
		name:  "wire/chat",
		why:   "a chat is what most clients use, and its stream has another shape",
		needs: []Capability{OpenAIAPI},
		check: onWire(wireChat),
	},
	{
		name:  "wire/errors",
		why:   "a client that sent nonsense must learn it by a status and a message, and the next request must be answered",
		needs: []Capability{OpenAIAPI},
		check: onWire(wireErrors),
	},
	{
		name:  "wire/values out of range",
		why:   "a parameter that is out of OpenAI's range is refused, or the engine is known to take more",
		needs: []Capability{OpenAIAPI, RangeChecks},
		check: onWire(wireValues),
	},
	{
		name:  "wire/limits",
		why:   "a request must not take the server down by its size or its depth",
		needs: []Capability{OpenAIAPI},
		check: onWire(wireLimits),
	},
	{
		name:  "wire/a disconnect aborts",
		why:   "a client that hangs up has no other way to cancel, and its work must not go on",
		needs: []Capability{OpenAIAPI, ActivityKnown},
		check: onWire(wireDisconnect),
	},
	{
		name:  "wire/many clients",
		why:   "each of many clients at the same time gets its own answer, and the whole of it",
		needs: []Capability{OpenAIAPI},
		check: onWire(wireMany),
	},
}

// onWire starts the shared engine and a client for its server.
func onWire(f func(*check, *live, *wireClient) error) func(*check) error {
	return func(c *check) error {
		l, err := c.engine()
		if err != nil {
			return err
		}
		w, err := c.wire(l)
		if err != nil {
			return err
		}
		return f(c, l, w)
	}
}

// body is a greedy request of the i-th prompt.
func (c *check) body(i, maxTokens int) map[string]any {
	q := c.s.prompt(i, llm.SamplingParams{})
	b := map[string]any{"prompt": q.Prompt, "max_tokens": maxTokens, "temperature": 0}
	if q.PromptTokenIDs != nil {
		b["prompt"] = q.PromptTokenIDs
	}
	return b
}

func wireModels(c *check, _ *live, w *wireClient) error {
	a, err := w.get(c, "/v1/models")
	if err != nil {
		return err
	}
	var list struct {
		Object string
		Data   []struct{ ID, Object string }
	}
	if err := json.Unmarshal(a.body, &list); err != nil || a.status != http.StatusOK {
		return a.errorf("not a list of models: %v", err)
	}
	if list.Object != "list" || len(list.Data) == 0 || list.Data[0].ID == "" || list.Data[0].Object != "model" {
		return a.errorf(`want {"object":"list","data":[{"id":…,"object":"model"}]}`)
	}
	return nil
}

func wireCompletion(c *check, l *live, w *wireClient) error {
	for i := range 4 {
		want, err := l.one(c, c.s.prompt(i, llm.SamplingParams{MaxTokens: 20}))
		if err != nil {
			return err
		}
		a, err := w.post(c, completionsPath, c.body(i, 20))
		if err != nil {
			return err
		}
		r, err := a.reply()
		if err != nil {
			return err
		}
		x := r.Choices[0]
		switch {
		case r.Object != "text_completion" || r.ID == "":
			return a.errorf("the object is %q, the id %q", r.Object, r.ID)
		case c.s.opts.tolerance == 0 && x.Text != want.Text:
			return a.errorf("the text is not the engine's: want %q", want.Text)
		case x.FinishReason == nil || c.s.opts.tolerance == 0 && *x.FinishReason != string(want.FinishReason):
			return a.errorf("the finish reason is not the engine's: want %q", want.FinishReason)
		}
		if text := r.Usage.wrong(len(want.TokenIDs)); text != "" {
			return a.errorf("%s", text)
		}
	}
	return nil
}

// wrong says what is wrong with the usage of an answer of this many tokens, 0 when that is not
// known.
func (u *usage) wrong(tokens int) string {
	switch {
	case u == nil:
		return "there is no usage"
	case u.Prompt <= 0 || u.Completion <= 0 || u.Total != u.Prompt+u.Completion:
		return fmt.Sprintf("the usage is %d + %d = %d tokens", u.Prompt, u.Completion, u.Total)
	case tokens > 0 && u.Completion != tokens:
		return fmt.Sprintf("the usage says %d tokens of an answer that has %d", u.Completion, tokens)
	}
	return ""
}

func wireStream(c *check, _ *live, w *wireClient) error {
	for i := range 4 {
		body := c.body(i, 32)
		a, err := w.post(c, completionsPath, body)
		if err != nil {
			return err
		}
		whole, err := a.reply()
		if err != nil {
			return err
		}
		body["stream"] = true
		s, err := w.post(c, completionsPath, body)
		if err != nil {
			return err
		}
		text, finish, chunks, err := s.joined()
		if err != nil {
			return err
		}
		want := whole.Choices[0]
		switch {
		case c.s.opts.tolerance == 0 && (text != want.Text || want.FinishReason == nil || finish != *want.FinishReason):
			return s.errorf("the stream is %q (%s), and the whole answer is %q", text, finish, want.Text)
		case len(chunks) < 2:
			return s.errorf("a stream of %d chunk is no stream", len(chunks))
		}
	}
	return nil
}

func wireStreamUsage(c *check, _ *live, w *wireClient) error {
	body := c.body(1, 24)
	a, err := w.post(c, completionsPath, body)
	if err != nil {
		return err
	}
	whole, err := a.reply()
	if err != nil {
		return err
	}
	body["stream"], body["stream_options"] = true, map[string]any{"include_usage": true}
	s, err := w.post(c, completionsPath, body)
	if err != nil {
		return err
	}
	_, _, chunks, err := s.joined()
	if err != nil {
		return err
	}
	for i, r := range chunks {
		last := i == len(chunks)-1
		switch {
		case last && (r.Usage == nil || len(r.Choices) > 0):
			return s.errorf("the last chunk has choices, or no usage")
		case !last && r.Usage != nil && r.Usage.Completion > 0:
			return s.errorf("chunk %d of %d has a usage", i+1, len(chunks))
		}
	}
	if u := chunks[len(chunks)-1].Usage; c.s.opts.tolerance == 0 && *u != *whole.Usage {
		return s.errorf("the usage is %+v, and that of the whole answer is %+v", *u, *whole.Usage)
	}
	return nil
}

func wireChat(c *check, _ *live, w *wireClient) error {
	body := map[string]any{
		"messages":   []map[string]string{{"role": "user", "content": "What is the capital of France?"}},
		"max_tokens": 16, "temperature": 0,
	}
	a, err := w.post(c, chatPath, body)
	if err != nil {
		return err
	}
	if a.status == http.StatusNotFound || a.status == http.StatusNotImplemented ||
		strings.Contains(string(a.body), "template") {
		return lacks(OpenAIAPI, "%s answers %d: %.200s", chatPath, a.status, a.body)
	}
	whole, err := a.reply()
	if err != nil {
		return err
	}
	x := whole.Choices[0]
	if whole.Object != "chat.completion" || x.Message == nil || x.Message.Role != "assistant" || x.FinishReason == nil {
		return a.errorf(`want an object "chat.completion" with an assistant's message and a finish reason`)
	}
	if text := whole.Usage.wrong(0); text != "" {
		return a.errorf("%s", text)
	}
	body["stream"] = true
	s, err := w.post(c, chatPath, body)
	if err != nil {
		return err
	}
	text, finish, chunks, err := s.joined()
	if err != nil {
		return err
	}
	first := chunks[0]
	if first.Object != "chat.completion.chunk" || len(first.Choices) == 0 || first.Choices[0].Delta == nil ||
		first.Choices[0].Delta.Role != "assistant" {
		return s.errorf(`the first chunk must be a "chat.completion.chunk" with the role of the assistant`)
	}
	if c.s.opts.tolerance == 0 && (text != x.Message.Content || finish != *x.FinishReason) {
		return s.errorf("the stream is %q (%s), and the whole answer is %q (%s)", text, finish, x.Message.Content,
			*x.FinishReason)
	}
	return nil
}

func wireErrors(c *check, _ *live, w *wireClient) error {
	with := func(key string, value any) []byte {
		b := c.body(0, 4)
		b[key] = value
		return w.encode(b)
	}
	var errs []error
	for _, x := range []struct {
		what, method, path string
		body               []byte
		statuses           []int
	}{
		{"a body that is not JSON", http.MethodPost, completionsPath, []byte("{"), []int{400, 422}},
		{"an empty body", http.MethodPost, completionsPath, []byte(""), []int{400, 422}},
		{"a list in place of an object", http.MethodPost, completionsPath, []byte("[1]"), []int{400, 422}},
		{"a text in place of a number", http.MethodPost, completionsPath, with("max_tokens", "many"), []int{400, 422}},
		{"another model", http.MethodPost, completionsPath, with("model", "no-such-model"), []int{404, 400}},
		{"no messages", http.MethodPost, chatPath, w.encode(map[string]any{}), nil},
	} {
		a, err := w.do(c, x.method, x.path, x.body)
		if err == nil {
			err = a.refusal(x.statuses...)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", x.what, err))
		}
	}
	for _, path := range []string{"/v1/nothing", completionsPath} { // of these, a router's own text will do
		a, err := w.get(c, path)
		if err == nil && a.status != http.StatusNotFound && a.status != http.StatusMethodNotAllowed {
			err = a.errorf("status %d, want 404 or 405", a.status)
		}
		errs = append(errs, err)
	}
	a, err := w.post(c, completionsPath, c.body(0, 4))
	if err == nil {
		_, err = a.reply()
	}
	if err != nil {
		errs = append(errs, fmt.Errorf("after bad requests, a good one: %w", err))
	}
	return errors.Join(errs...)
}

// wireValues sends what OpenAI refuses. An engine that answers some of it is no worse for it: that
// is listed.
func wireValues(c *check, _ *live, w *wireClient) error {
	var taken []string
	for _, x := range []struct {
		name  string
		value any
	}{
		{"max_tokens", -1},
		{"temperature", 3.5},
		{"temperature", -1},
		{"top_p", 1.5},
		{"top_p", -0.5},
		{"presence_penalty", 2.5},
	} {
		body := c.body(0, 4)
		body[x.name] = x.value
		a, err := w.post(c, completionsPath, body)
		if err != nil {
			return err
		}
		if a.status == http.StatusOK {
			if _, err := a.reply(); err != nil {
				return err
			}
			taken = append(taken, fmt.Sprintf("%s %v", x.name, x.value))
		} else if err := a.refusal(400, 422); err != nil {
			return fmt.Errorf("%s %v: %w", x.name, x.value, err)
		}
	}
	if len(taken) > 0 {
		return lacks(RangeChecks, "it takes %s", strings.Join(taken, ", "))
	}
	return nil
}

func wireLimits(c *check, _ *live, w *wireClient) error {
	deep := strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)
	for what, body := range map[string][]byte{
		"a prompt nested 100,000 deep": []byte(`{"prompt":` + deep + `}`),
		"a prompt of 2 MB": w.encode(map[string]any{
			"prompt":     strings.Repeat("word ", 400_000),
			"max_tokens": 2,
		}),
		"a billion choices": w.encode(map[string]any{
			"prompt": "a", "n": 1_000_000_000, "max_tokens": 2,
			"temperature": 1,
		}),
		"20 prompts with 16,384 choices each": w.encode(map[string]any{
			"prompt": strings.Split(strings.Repeat("a", 20), ""), "n": 16384,
			"max_tokens": 2, "temperature": 1,
		}),
		"a number beyond all integers": w.encode(map[string]any{
			"prompt":     "a",
			"max_tokens": json.Number("1" + strings.Repeat("0", 400)),
		}),
		"a hundred thousand biases": w.encode(map[string]any{
			"prompt": "a", "max_tokens": 2,
			"logit_bias": manyBiases(100_000),
		}),
	} {
		a, err := w.do(c, http.MethodPost, completionsPath, body)
		if err == nil && a.status == http.StatusOK {
			_, err = a.reply() // it was not too much
		} else if err == nil {
			err = a.refusal()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	a, err := w.post(c, completionsPath, c.body(0, 4))
	if err == nil {
		_, err = a.reply()
	}
	return err
}

func manyBiases(n int) map[string]int {
	m := make(map[string]int, n)
	for i := range n {
		m[fmt.Sprint(10_000_000+i)] = 1
	}
	return m
}

// begin starts a long stream and reads its first line; hangUp ends it there.
func (c *check) begin(w *wireClient) (hangUp func() error, err error) {
	body := c.body(0, longAnswer)
	body["ignore_eos"], body["stream"] = true, true
	res, err := w.send(c, http.MethodPost, completionsPath, w.encode(body))
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("a stream begins with status %d", res.StatusCode), res.Body.Close())
	}
	if _, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil {
		return nil, errors.Join(fmt.Errorf("a stream begins with %w", err), res.Body.Close())
	}
	return res.Body.Close, nil
}

func wireDisconnect(c *check, l *live, w *wireClient) error {
	if _, known, err := l.activity(c); err != nil {
		return err
	} else if !known {
		return lacks(ActivityKnown, "the server does not tell what it works on")
	}
	for range 3 {
		hangUp, err := c.begin(w)
		if err != nil {
			return err
		}
		_ = hangUp()
	}
	if err := c.freed(l); err != nil {
		return fmt.Errorf("after 3 clients that hung up in the middle of a stream: %w", err)
	}
	return nil
}

func wireMany(c *check, _ *live, w *wireClient) error {
	clients := 200
	if c.s.opts.short {
		clients = 40
	}
	const kinds = 8
	want := make([]string, kinds)
	for i := range want {
		a, err := w.post(c, completionsPath, c.body(i, 12))
		if err != nil {
			return err
		}
		r, err := a.reply()
		if err != nil {
			return err
		}
		want[i] = r.Choices[0].Text
	}
	errs := make([]error, clients)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			body := c.body(i%kinds, 12)
			streamed := i%2 == 1
			body["stream"] = streamed
			a, err := w.post(c, completionsPath, body)
			if err != nil {
				errs[i] = err
				return
			}
			var text string
			if streamed {
				text, _, _, err = a.joined()
			} else if r, e := a.reply(); e != nil {
				err = e
			} else {
				text = r.Choices[0].Text
			}
			if err == nil && c.s.opts.tolerance == 0 && text != want[i%kinds] {
				err = a.errorf("client %d of %d got %q, want %q", i+1, clients, text, want[i%kinds])
			}
			errs[i] = err
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return fmt.Errorf("%d clients at the same time: %w", clients, err)
		}
	}
	c.notef("%d clients", clients)
	return nil
}
