package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unicode"
)

// common are the fields of both kinds of completions, OpenAI's and vLLM's.
type common struct {
	Model          *string        `json:"model"`
	Stream         bool           `json:"stream"`
	StreamOptions  *streamOptions `json:"stream_options"`
	ReturnTokenIDs bool           `json:"return_token_ids"`
	Sampling       sampling       `json:"-"`

	structured
}

type streamOptions struct {
	IncludeUsage       bool `json:"include_usage"`
	IncludeObfuscation bool `json:"include_obfuscation"` // of stream sizes: OpenAI's; there is none here
}

// ignored fields cannot change an answer of this server: they name the caller, or ask for a service
// tier, a store or a cache key.
var ignored = []string{
	"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
	"request_id", "priority",
}

// refused fields change the answer in a way that this server does not know. The values listed are
// those that ask for nothing.
var refused = map[string][]string{
	"tools": {"[]"}, "tool_choice": {`"none"`, `"auto"`}, "parallel_tool_calls": {"true", "false"}, "functions": {"[]"},
	"function_call":           {`"none"`, `"auto"`},
	"guided_decoding_backend": nil, "guided_whitespace_pattern": nil,
	"modalities": {`["text"]`}, "audio": nil, "prediction": nil, "web_search_options": nil,
	"reasoning_effort": {`"none"`}, "verbosity": {`"medium"`},
	"suffix": {`""`}, "echo": {"false"}, "best_of": {"1"}, "use_beam_search": {"false"}, "length_penalty": {"1", "1.0"},
	"prompt_logprobs":   nil,
	"logits_processors": nil, "prompt_embeds": nil, "lora_request": nil, "continue_final_message": {"false"},
	"documents": {"[]"}, "truncate_prompt_tokens": nil,
	"add_special_tokens": nil, "spaces_between_special_tokens": {"true"}, "min_tokens_to_keep": nil,
	"kv_transfer_params": nil,
}

// UnmarshalJSON wants the names to the letter, where encoding/json takes any case.
func (o *streamOptions) UnmarshalJSON(data []byte) error {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		into := map[string]*bool{"include_usage": &o.IncludeUsage, "include_obfuscation": &o.IncludeObfuscation}[name]
		if into == nil {
			return invalid("stream_options."+name, "unknown_parameter", "unknown field")
		}
		if err := json.Unmarshal(raw[name], into); err != nil {
			return err
		}
	}
	return nil
}

// readRequest fills a struct from a body. A large one waits for its turn to be worked on, which
// lasts until the caller calls done.
func (s *Server) readRequest(w http.ResponseWriter, r *http.Request, m *model, into any) (done func(), err error) {
	b, closeBody, err := s.openBody(w, r)
	if err != nil {
		return nil, err
	}
	defer closeBody()
	raw, err := b.read(s.bounds(m))
	if err != nil {
		return nil, err
	}
	if done, err = s.turn(r.Context(), b.n); err != nil {
		return nil, err
	}
	if err := fill(raw, into); err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// bounds are those of a request's fields for a model.
func (s *Server) bounds(m *model) bounds {
	text, ids := int64(-1), int64(-1)
	var tooMany func(int) error
	if m != nil {
		if most := m.maxText(); most > 0 {
			text = jsonGrowth*int64(most) + freeBody
		}
		ids = int64(m.vocab)*32 + fieldBytes
		tooMany = func(n int) error {
			if n <= m.longest() {
				return nil
			}
			return m.tooLong(n)
		}
	}
	return func(field string) bound {
		switch field {
		case "prompt", "input", "text_1", "text_2", "documents":
			return bound{
				bytes: max(text, -1), items: s.options.MaxPrompts, what: "prompts", option: "MaxPrompts",
				ids: tooMany,
			}
		case "query":
			return bound{bytes: max(text, -1)}
		case "messages":
			if text < 0 {
				return bound{bytes: -1}
			}
			return bound{bytes: 2 * text} // a template may leave some of them out
		case "stop":
			return bound{bytes: wordBytes, items: s.options.MaxStop, what: "stop strings", option: "MaxStop"}
		case "bad_words":
			return bound{bytes: wordBytes, items: s.options.MaxBadWords, what: "bad words", option: "MaxBadWords"}
		case "logit_bias", "allowed_token_ids", "stop_token_ids", "tokens":
			return bound{bytes: ids}
		}
		return bound{bytes: fieldBytes}
	}
}

// turn lets one large body at a time be decoded, tokenized and rendered, so that the engine keeps
// the other processors. Small ones need no turn.
func (s *Server) turn(ctx context.Context, bytes int64) (done func(), err error) {
	if bytes <= freeBody {
		return func() {}, nil
	}
	select {
	case s.large <- struct{}{}:
		return sync.OnceFunc(func() { <-s.large }), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// fill sets a struct's fields one by one, so that an error names the field.
func fill(raw map[string]json.RawMessage, into any) error {
	known := map[string]reflect.Value{}
	fields(reflect.ValueOf(into).Elem(), known)
	body, sampler := into.(hasSampling)
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		value := raw[name]
		if string(value) == "null" || slices.Contains(ignored, name) {
			continue
		}
		if field, ok := known[name]; ok {
			if err := typed(name, json.Unmarshal(value, field.Addr().Interface())); err != nil {
				return err
			}
			continue
		}
		allowed, ok := refused[name]
		if p, is := param(name); is && !ok && sampler {
			if err := typed(name, body.parameters().set(p, value)); err != nil {
				return err
			}
			continue
		}
		if !ok {
			return invalid(name, "unknown_parameter", "unknown field")
		}
		var compact bytes.Buffer
		if json.Compact(&compact, value) != nil || !slices.Contains(allowed, compact.String()) {
			return invalid(name, "unsupported_parameter", "not supported")
		}
	}
	return nil
}

// typed makes an answer of an error of a field's type.
func typed(name string, err error) error {
	if err == nil {
		return nil
	}
	if api, ok := errors.AsType[*apiError](err); ok {
		return api
	}
	return invalid(name, "invalid_type", "%v", jsonError(err))
}

// fields lists a struct's fields by their JSON names.
func fields(v reflect.Value, into map[string]reflect.Value) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous {
			fields(v.Field(i), into)
			continue
		}
		if name := f.Tag.Get("json"); name != "-" {
			into[name] = v.Field(i)
		}
	}
}

// jsonError says in a client's words what is wrong.
func jsonError(err error) error {
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind):
		want := jsonKind(kind.Type.Kind())
		if number, ok := strings.CutPrefix(kind.Value, "number "); ok {
			if want == "number" || want == "integer" && !strings.ContainsAny(number, ".eE") {
				return fmt.Errorf("%s is out of range", number)
			}
			return fmt.Errorf("got %s, want %s", number, want)
		}
		return fmt.Errorf("got %s, want %s", kind.Value, want)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return errors.New("it ends too early")
	}
	return err
}

// jsonKind is what JSON calls a kind of values.
func jsonKind(k reflect.Kind) string {
	switch k {
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "integer"
	case reflect.Float64:
		return "number"
	case reflect.Slice:
		return "array"
	case reflect.Map, reflect.Struct:
		return "object"
	}
	return k.String()
}

// texts is one text or a list of them.
type texts []string

func (t *texts) UnmarshalJSON(data []byte) error {
	var one *string
	if json.Unmarshal(data, &one) == nil && one != nil {
		*t = texts{*one}
		return nil
	}
	if json.Unmarshal(data, (*[]string)(t)) != nil {
		return errors.New("want a text or a list of texts")
	}
	return nil
}

// tokenIDs is a list of token ids. Null is none, where encoding/json would read token 0.
type tokenIDs []int32

func (t *tokenIDs) UnmarshalJSON(data []byte) error {
	var list []*int32
	if json.Unmarshal(data, &list) != nil || slices.Contains(list, nil) {
		return errors.New("want a list of token ids")
	}
	if list != nil {
		*t = make(tokenIDs, len(list))
	}
	for i, id := range list {
		(*t)[i] = *id
	}
	return nil
}

const maxLogprobs = 20 // OpenAI's bound of top_logprobs, and vLLM's of both

func checkLogprobs(field string, k int) error {
	if k < 0 || k > maxLogprobs {
		return invalid(field, "invalid_value", "is %d, must be in [0, %d]", k, maxLogprobs)
	}
	return nil
}

// fieldName turns the engine's name of a field into the API's: MaxTokens → max_tokens,
// StopTokenIDs[1] → stop_token_ids[1].
func fieldName(s string) string {
	if strings.HasPrefix(s, "the prompt") {
		return "prompt"
	}
	s, _, _ = strings.Cut(s, "'") // LogitBias' token id
	s = strings.NewReplacer("IDs", "Ids", "EOS", "Eos", "PromptTokenIDs", "Prompt").Replace(s)
	var b strings.Builder
	for i, c := range s {
		if unicode.IsUpper(c) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }
