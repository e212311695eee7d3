// Package openai serves an engine over HTTP, in the shapes of OpenAI's API and with vLLM's extra
// fields: completions, chat completions, streams as server-sent events, models, health and metrics.
//
// Nothing that would change an answer is ignored. A field that this server does not know, or does
// not support, is refused by name:
//
//	400 {"error":{"message":"temprature: unknown field","type":"invalid_request_error","param":"temprature","code":"unknown_parameter"}}
//	400 {"error":{"message":"tools: not supported","type":"invalid_request_error","param":"tools","code":"unsupported_parameter"}}
//	503 {"error":{"message":"the server is shutting down: it takes no new work","type":"service_unavailable","param":null,"code":"draining"}}
package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/engine/internal/chat"
	"github.com/enginetest/enginetest/engine/internal/tokenizer"
	"github.com/enginetest/enginetest/llm"
)

// Server is an http.Handler. It answers from the start; until SetModel it says that it is loading.
type Server struct {
	options Options
	name    string // of the model
	created int64
	bodies  atomic.Int64  // bytes of bodies that are being read
	large   chan struct{} // holds a place for each large body that is being worked on
	pause   time.Duration // before the refusal of a large body
	broken  error         // why there is no model
	model   atomic.Pointer[model]
	stopped atomic.Bool
	routes  map[string]route
	lora    []loraModule

	requests atomic.Uint64 // completions, chats included
}

type route struct {
	method string // or several, separated by commas
	serve  func(w http.ResponseWriter, r *http.Request) error
}

// model is what the server answers with once it is loaded.
type model struct {
	engine      *engine.Engine
	tok         *tokenizer.Tokenizer // nil: token ids only
	maxLen      int
	vocab       int // about: for the size of lists of tokens
	templates   *chat.Templates
	noTemplates error // why there are none
	latencies   *latencies
}

// New makes a server whose model is still loading; [Handler] makes one for an engine that is open.
func New(o Options) *Server {
	s := &Server{
		options: o.withDefaults(), name: o.Name, created: time.Now().Unix(), pause: refusalPause,
		large: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/4)), lora: parseLoRA(o.LoRA),
	}
	s.routes = map[string]route{
		"/v1/completions":      {http.MethodPost, s.completions},
		"/v1/chat/completions": {http.MethodPost, s.chat},
		"/v1/models":           {http.MethodGet, s.models},
		"/health":              {http.MethodGet, s.health},
		"/metrics":             {http.MethodGet, s.metrics},
		"/ping":                {http.MethodGet + ", " + http.MethodPost, s.health},
		"/version":             {http.MethodGet, s.version},
		"/tokenize":            {http.MethodPost, s.tokenize},
		"/detokenize":          {http.MethodPost, s.detokenize},
		"/sleep":               {http.MethodPost, s.sleep},
		"/wake_up":             {http.MethodPost, s.wakeUp},
		"/is_sleeping":         {http.MethodGet, s.isSleeping},
		"/reset_prefix_cache":  {http.MethodPost, s.resetPrefixCache},
	}
	maps.Copy(s.routes, s.sglangRoutes())
	maps.Copy(s.routes, s.poolingRoutes())
	for path, what := range map[string]string{
		"/v1/responses": "the responses API", "/v1/moderations": "moderations", "/v1/images/generations": "images",
		"/v1/audio/speech": "audio", "/v1/audio/transcriptions": "audio",
	} {
		s.routes[path] = route{http.MethodPost, func(http.ResponseWriter, *http.Request) error {
			return &apiError{status: http.StatusNotImplemented, kind: "not_implemented", code: "unsupported_endpoint", message: what + ": not supported by this server"}
		}}
	}
	return s
}

// SetModel starts to serve. e is the engine of the checkpoint in e.Config().Model, whose tokenizer
// and chat templates the server reads. A checkpoint without a chat template, or with one that
// cannot be rendered, serves all but chat; the error, of chat only, is for a log.
func (s *Server) SetModel(e *engine.Engine) (chatError, err error) {
	cfg := e.Config()
	m := &model{engine: e, maxLen: cfg.MaxModelLen, vocab: 1 << 18, latencies: newLatencies(cfg.MaxModelLen)}
	if !cfg.SkipTokenizer {
		m.tok, err = tokenizer.Load(filepath.Join(cfg.Model, "tokenizer.json"))
		if err != nil && !isNotExist(err) && !m.pools() { // an encoder may have one that the engine does not read
			return nil, err
		}
	}
	if m.tok != nil {
		m.vocab = m.tok.VocabSize()
	}
	if m.templates, m.noTemplates = chat.Load(cfg.Model); m.noTemplates == nil && m.tok == nil {
		m.noTemplates = fmt.Errorf("%w: a chat needs one", llm.ErrNoTokenizer)
	}
	s.model.Store(m)
	return m.noTemplates, nil
}

// closed is closed when the engine has ended; it never is while there is none.
func (s *Server) closed() <-chan struct{} {
	if m := s.model.Load(); m != nil {
		return m.engine.Done()
	}
	return nil
}

// Drain refuses new work from now on; what runs goes on.
func (s *Server) Drain() { s.stopped.Store(true) }

// Finish waits until the answers that have been begun are written, or until ctx ends. With a
// latency profile the engine has finished long before.
func (s *Server) Finish(ctx context.Context) error {
	m := s.model.Load()
	if m == nil {
		return nil
	}
	return m.latencies.wait(ctx)
}

func (s *Server) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w := &writer{ResponseWriter: rw, timeout: s.options.WriteTimeout}
	defer func() {
		if v := recover(); v != nil {
			w.recovered(r, v)
		}
	}()
	if s.crossOrigin(w, r) {
		return
	}
	// An error is written even when the client seems to be gone: one that has only closed its side
	// still reads, and must not take the end of an empty answer for success.
	if err := s.serve(w, r); err != nil && !w.begun {
		s.pauseRefusal(w, r)
		asAPIError(err).write(w)
	}
}

func (s *Server) serve(w *writer, r *http.Request) error {
	if err := s.allow(r); err != nil {
		return err
	}
	f, err := s.readFault(r)
	if err != nil {
		return err
	}
	if err := s.before(f, w, r); err != nil {
		return err
	}
	rt, ok := s.routes[r.URL.Path]
	if id, found := strings.CutPrefix(r.URL.Path, "/v1/models/"); !ok && found {
		rt, ok = route{http.MethodGet, func(w http.ResponseWriter, _ *http.Request) error { return s.retrieve(w, id) }}, true
	}
	switch {
	case !ok:
		return &apiError{status: http.StatusNotFound, kind: "invalid_request_error", code: "not_found", message: "no such path: " + r.URL.Path}
	case !rt.takes(r.Method):
		w.Header().Set("Allow", rt.method)
		return &apiError{status: http.StatusMethodNotAllowed, kind: "invalid_request_error", code: "method_not_allowed", message: fmt.Sprintf("%s wants %s, not %s", r.URL.Path, rt.method, r.Method)}
	}
	return rt.serve(w, r)
}

// takes reports whether a route has a method. A HEAD is a GET without the body.
func (rt route) takes(method string) bool {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	return slices.Contains(strings.Split(rt.method, ", "), method)
}

// ready returns the model, or why the server takes no work now.
func (s *Server) ready() (*model, error) {
	m := s.model.Load()
	if s.stopped.Load() {
		return nil, unavailable("draining", "the server is shutting down: it takes no new work")
	}
	if s.broken != nil {
		return nil, s.broken
	}
	if m == nil {
		return nil, unavailable("loading", "the model is loading")
	}
	switch state := m.engine.State(); state {
	case engine.Running:
		return m, nil
	case engine.Failed:
		cause := llm.ErrEngineDead
		if err := m.engine.Err(); err != nil { // it is there a moment after the state is
			cause = err
		}
		return nil, unavailable("engine_dead", cause.Error())
	default:
		return nil, unavailable("not_running", "the engine is "+state.String())
	}
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) error {
	if _, err := s.ready(); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// card is the API's description of a model.
type card struct {
	ID          string  `json:"id"`
	Object      string  `json:"object"`
	Created     int64   `json:"created"`
	OwnedBy     string  `json:"owned_by"`
	Root        string  `json:"root,omitempty"`
	Parent      *string `json:"parent"` // of another name for the model
	MaxModelLen int     `json:"max_model_len,omitempty"`
}

func (s *Server) card() card {
	c := card{ID: s.name, Object: "model", Created: s.created, OwnedBy: "enginetest"}
	if m := s.model.Load(); m != nil {
		c.Root, c.MaxModelLen = m.engine.Config().Model, m.maxLen
	}
	return c
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": append([]card{s.card()}, s.loraCards()...)})
}

// retrieve is GET /v1/models/{model}.
func (s *Server) retrieve(w http.ResponseWriter, id string) error {
	if err := s.checkModel(&id); err != nil {
		return err
	}
	for _, c := range s.loraCards() {
		if c.ID == id {
			return writeJSON(w, http.StatusOK, c)
		}
	}
	return writeJSON(w, http.StatusOK, s.card())
}

// checkModel refuses a request for another model.
func (s *Server) checkModel(name *string) error {
	if name == nil || *name == s.name || slices.ContainsFunc(s.lora, func(m loraModule) bool { return m.name == *name }) {
		return nil
	}
	return &apiError{
		status: http.StatusNotFound, kind: "invalid_request_error", param: "model", code: "model_not_found",
		message: fmt.Sprintf("model: %q is not served here, %q is", *name, s.name),
	}
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	data, err := marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(data) // the client is gone: there is nobody to tell
	return nil
}

// marshal leaves <, > and & as they are: special tokens are full of them. The text ends with a
// newline.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

var _ http.Handler = (*Server)(nil)

// apiError is an error in OpenAI's shape.
type apiError struct {
	status  int
	kind    string
	param   string
	code    string
	message string
}

func (e *apiError) Error() string { return e.message }

func (e *apiError) body() map[string]any {
	optional := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	return map[string]any{"error": map[string]any{"message": e.message, "type": e.kind, "param": optional(e.param), "code": optional(e.code)}}
}

func (e *apiError) write(w http.ResponseWriter) {
	if e.status == http.StatusServiceUnavailable || e.status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	_ = writeJSON(w, e.status, e.body())
}

func invalid(param, code, format string, args ...any) *apiError {
	message := fmt.Sprintf(format, args...)
	if param != "" {
		message = param + ": " + message
	}
	return &apiError{status: http.StatusBadRequest, kind: "invalid_request_error", param: param, code: code, message: message}
}

func unavailable(code, message string) *apiError {
	return &apiError{status: http.StatusServiceUnavailable, kind: "service_unavailable", code: code, message: message}
}

func overloaded(format string, args ...any) *apiError {
	return &apiError{status: http.StatusTooManyRequests, kind: "rate_limit_error", code: "overloaded", message: fmt.Sprintf(format, args...)}
}

// statusGone is nginx's for a client that has closed its side of the connection.
const statusGone = 499

// asAPIError maps the engine's errors.
func asAPIError(err error) *apiError {
	var api *apiError
	var param *llm.ParamError
	var limit *llm.LimitError
	var tmpl *chat.Error
	switch {
	case errors.As(err, &api):
		return api
	case errors.As(err, &limit) && limit.Never():
		return invalid("", "too_many", "%v", err)
	case errors.As(err, &limit):
		return overloaded("%v", err)
	case errors.Is(err, context.Canceled):
		return &apiError{
			status: statusGone, kind: "invalid_request_error", code: "client_closed_request",
			message: "the client closed its side of the connection before the answer, which ends its request: " + err.Error(),
		}
	case grammarError(err) != nil:
		return grammarError(err)
	case errors.As(err, &param):
		name := fieldName(param.Field)
		return invalid(name, "invalid_value", "is %v, must be %s", param.Value, param.Bound)
	case errors.Is(err, llm.ErrUnsupported):
		return invalid("", "unsupported_task", "%v", err)
	case errors.Is(err, llm.ErrPromptTooBig):
		return invalid("", "context_length_exceeded", "%v", err)
	case errors.Is(err, llm.ErrNoTokenizer):
		return invalid("", "no_tokenizer", "%v", err)
	case errors.Is(err, chat.ErrNoTemplate):
		return invalid("", "no_chat_template", "%v", err)
	case errors.As(err, &tmpl) && tmpl.Kind == chat.Unsupported:
		return &apiError{status: http.StatusNotImplemented, kind: "not_implemented", code: "unsupported_chat_template", message: err.Error()}
	case errors.As(err, &tmpl):
		return invalid("messages", "chat_template", "%v", err)
	case errors.Is(err, llm.ErrStopped), errors.Is(err, llm.ErrDraining), errors.Is(err, llm.ErrSleeping):
		return unavailable("draining", err.Error())
	}
	code := "internal_error"
	if errors.Is(err, llm.ErrEngineDead) {
		code = "engine_dead"
	}
	return &apiError{status: http.StatusInternalServerError, kind: "server_error", code: code, message: err.Error()}
}
