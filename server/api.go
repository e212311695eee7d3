package server

import (
	"context"
	"iter"

	"github.com/enginetest/enginetest/llm"
)

// Protocol names what a server speaks.
type Protocol string

// The protocols.
const (
	ProtocolOpenAI     Protocol = "openai" // what all of them have in common
	ProtocolEnginetest Protocol = "enginetest"
	ProtocolLlamaCpp   Protocol = "llama.cpp"
	ProtocolOllama     Protocol = "ollama"
	ProtocolVLLM       Protocol = "vllm"
	ProtocolSGLang     Protocol = "sglang"
)

// api is how a protocol does each verb; nil where it has none.
type api struct {
	protocol   Protocol
	healthPath string
	anyHealth  bool // a 404 will do

	setUp            func(context.Context, *Server) error
	generate         func(context.Context, *Server, llm.Request) (llm.Output, error)
	stream           func(context.Context, *Server, llm.Request, func(llm.Delta) bool) error
	chat             func(context.Context, *Server, []llm.Message, llm.SamplingParams) (llm.Output, error)
	embed            func(context.Context, *Server, []string) ([][]float32, error)
	classify         func(context.Context, *Server, []string) ([][]float32, error)
	score            func(context.Context, *Server, string, []string) ([]float32, error)
	tokenize         func(context.Context, *Server, string) ([]int32, error)
	detokenize       func(context.Context, *Server, []int32) (string, error)
	sleep            func(context.Context, *Server, int) error
	wake             func(context.Context, *Server, []string) error
	resetPrefixCache func(context.Context, *Server) error
	stats            func(context.Context, *Server) (Stats, error)
	unload           func(context.Context, *Server) error
	pull             func(context.Context, *Server, string) error
}

var apis = map[Protocol]*api{}

func register(a *api) *api {
	apis[a.protocol] = a
	return a
}

func (s *Server) lacks(verb string) error {
	return &UnsupportedError{Protocol: s.cfg.api.protocol, Verb: verb}
}

// Generate answers every request, in order. They are sent together, so that the server can batch
// them.
func (s *Server) Generate(ctx context.Context, reqs ...llm.Request) ([]llm.Output, error) {
	outs := make([]llm.Output, len(reqs))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make(chan error, len(reqs))
	slots := make(chan struct{}, maxTogether)
	for i, r := range reqs {
		go func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			var err error
			outs[i], err = s.cfg.api.generate(ctx, s, r)
			errs <- err
		}()
	}
	var first error
	for range reqs {
		if err := <-errs; err != nil && first == nil {
			first = err
			cancel() // the others' answers are of no use
		}
	}
	if first != nil {
		return nil, first
	}
	return outs, nil
}

// maxTogether bounds the connections of one Generate.
const maxTogether = 256

// Stream returns the deltas of one request as they come. Leaving the loop disconnects, which aborts
// the request. So does the end of ctx, whose error is then the last value, whatever has arrived.
func (s *Server) Stream(ctx context.Context, req llm.Request) iter.Seq2[llm.Delta, error] {
	return func(yield func(llm.Delta, error) bool) {
		if s.cfg.api.stream == nil {
			yield(llm.Delta{}, s.lacks("stream"))
			return
		}
		left := false
		err := s.cfg.api.stream(ctx, s, req, func(d llm.Delta) bool {
			left = !yield(d, nil)
			return !left
		})
		if err != nil && !left {
			yield(llm.Delta{}, err)
		}
	}
}

// Chat answers a conversation with the model's own template.
func (s *Server) Chat(ctx context.Context, messages []llm.Message, params llm.SamplingParams) (llm.Output, error) {
	if s.cfg.api.chat == nil {
		return llm.Output{}, s.lacks("chat")
	}
	return s.cfg.api.chat(ctx, s, messages, params)
}

// Embed returns one vector per text.
func (s *Server) Embed(ctx context.Context, texts ...string) ([][]float32, error) {
	if s.cfg.api.embed == nil {
		return nil, s.lacks("embed")
	}
	return s.cfg.api.embed(ctx, s, texts)
}

// Classify returns the probability of each class, one slice per text.
func (s *Server) Classify(ctx context.Context, texts ...string) ([][]float32, error) {
	if s.cfg.api.classify == nil {
		return nil, s.lacks("classify")
	}
	return s.cfg.api.classify(ctx, s, texts)
}

// Score rates each text against the query.
func (s *Server) Score(ctx context.Context, query string, texts ...string) ([]float32, error) {
	if s.cfg.api.score == nil {
		return nil, s.lacks("score")
	}
	return s.cfg.api.score(ctx, s, query, texts)
}

// Tokenize returns the ids of a text.
func (s *Server) Tokenize(ctx context.Context, text string) ([]int32, error) {
	if s.cfg.api.tokenize == nil {
		return nil, s.lacks("tokenize")
	}
	return s.cfg.api.tokenize(ctx, s, text)
}

// Detokenize returns the text of ids.
func (s *Server) Detokenize(ctx context.Context, ids []int32) (string, error) {
	if s.cfg.api.detokenize == nil {
		return "", s.lacks("detokenize")
	}
	return s.cfg.api.detokenize(ctx, s, ids)
}

// Sleep releases device memory. Level 1 keeps the weights on the host, level 2 keeps nothing.
func (s *Server) Sleep(ctx context.Context, level int) error {
	if s.cfg.api.sleep == nil {
		return s.lacks("sleep")
	}
	return s.cfg.api.sleep(ctx, s, level)
}

// Wake ends a sleep, of the named parts or of all.
func (s *Server) Wake(ctx context.Context, tags ...string) error {
	if s.cfg.api.wake == nil {
		return s.lacks("wake")
	}
	return s.cfg.api.wake(ctx, s, tags)
}

// ResetPrefixCache makes the server forget the prompts that it has seen.
func (s *Server) ResetPrefixCache(ctx context.Context) error {
	if s.cfg.api.resetPrefixCache == nil {
		return s.lacks("prefix cache reset")
	}
	return s.cfg.api.resetPrefixCache(ctx, s)
}

// Unload makes the server release the model, and returns when it says that it has.
func (s *Server) Unload(ctx context.Context) error {
	if s.cfg.api.unload == nil {
		return s.lacks("unload")
	}
	return s.cfg.api.unload(ctx, s)
}

// Pull makes the server download a model. A download that stalls for the [StallTimeout], or for a
// minute, is an error. Ollama downloads from a registry without TLS when the name begins with
// http://.
func (s *Server) Pull(ctx context.Context, model string) error {
	if s.cfg.api.pull == nil {
		return s.lacks("pull")
	}
	return s.cfg.api.pull(ctx, s, model)
}
