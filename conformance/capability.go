package conformance

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/server"
)

// Capability is something that an engine may have or lack. A property that needs one is not checked
// on an engine that lacks it.
type Capability string

// The capabilities. Those of the first group are methods; those of the second, parameters and
// results of a request; those of the third, ways to open the engine that options of [Run] provide.
const (
	Streaming     Capability = "streaming"       // harness.Streamer
	PrefixReset   Capability = "prefix reset"    // harness.PrefixCacheResetter
	Sleeping      Capability = "sleep"           // harness.Sleeper
	ActivityKnown Capability = "activity"        // harness.ActivityReporter
	Draining      Capability = "drain"           // Drain(context.Context) error
	AbortByID     Capability = "abort by id"     // Abort(id string) bool
	OwnProcess    Capability = "own process"     // harness.ProcessLister, with at least one process
	OpenAIAPI     Capability = "openai endpoint" // URL() string, where OpenAI's API is served
	OllamaAPI     Capability = "ollama endpoint" // URL() and a Protocol() that is server.ProtocolOllama
	Embeddings    Capability = "embeddings"      // harness.Embedder
	Classes       Capability = "classes"         // harness.Classifier
	Scores        Capability = "scores"          // harness.Scorer
	Pooling       Capability = "pooling"         // any of these three
	// PoolingInfo() llm.PoolingInfo, which says that embeddings have length 1
	NormalisedVectors Capability = "normalised embeddings"
	// Pool(context.Context, ...llm.PoolingRequest) ([]llm.PoolingOutput, error), with Dimensions
	ShorterEmbeddings Capability = "shorter embeddings"
	TokenIDs          Capability = "token ids"       // Completion.TokenIDs
	TokenInput        Capability = "token prompts"   // Request.PromptTokenIDs
	Text              Capability = "text"            // Request.Prompt and Completion.Text
	Logprobs          Capability = "logprobs"        // SamplingParams.Logprobs
	LogprobModes      Capability = "logprob modes"   // SamplingParams.LogprobsMode
	FullLogprobs      Capability = "full logprobs"   // Logprobs of the whole vocabulary
	PromptScores      Capability = "prompt logprobs" // SamplingParams.PromptLogprobs
	Sampling          Capability = "sampling"        // Temperature
	Seeds             Capability = "seeds"           // Seed
	Several           Capability = "n"               // N
	TopK              Capability = "top-k"
	TopP              Capability = "top-p"
	MinP              Capability = "min-p"
	TypicalP          Capability = "typical-p"
	Penalties         Capability = "penalties" // presence and frequency
	Repetition        Capability = "repetition penalty"
	NGrams            Capability = "no-repeat n-grams"
	LogitBias         Capability = "logit bias"
	AllowedTokens     Capability = "allowed tokens"
	BadWords          Capability = "bad words"
	StructuredOutput  Capability = "structured outputs"
	StopStrings       Capability = "stop strings"
	StopReasons       Capability = "stop reasons" // Completion.StopReason
	StopIDs           Capability = "stop ids"
	EndOfSequence     Capability = "end of sequence" // an EOS token, and IgnoreEOS
	MinTokens         Capability = "min tokens"
	RangeChecks       Capability = "range checks"  // llm.ParamError, or another error that names the field
	TightMemory       Capability = "tight memory"  // option Tight
	Injection         Capability = "faults"        // option Faulty
	BadStarts         Capability = "failed starts" // option MustNotStart
)

// Capabilities lists all of them, for an engine that claims everything.
func Capabilities() []Capability {
	return []Capability{
		Streaming, PrefixReset, Sleeping, ActivityKnown, Draining, AbortByID, OwnProcess, OpenAIAPI, OllamaAPI,
		Embeddings, Classes, Scores, Pooling, NormalisedVectors, ShorterEmbeddings, TokenIDs,
		TokenInput, Text, Logprobs, LogprobModes, FullLogprobs, PromptScores, Sampling, Seeds, Several, TopK, TopP, MinP,
		TypicalP, Penalties, Repetition, NGrams, LogitBias, AllowedTokens, BadWords, StructuredOutput, StopStrings, StopReasons, StopIDs,
		EndOfSequence, MinTokens, RangeChecks, TightMemory, Injection, BadStarts,
	}
}

// lackError says that the engine lacks a capability.
type lackError struct {
	capability Capability
	reason     string
}

func (e *lackError) Error() string { return fmt.Sprintf("%s: %s", e.capability, e.reason) }

func lacks(c Capability, format string, args ...any) error {
	return &lackError{c, fmt.Sprintf(format, args...)}
}

// lackOf returns the capability whose absence err reports, nil when it reports something else. An
// engine's own refusal does not say which of needs it is about: the last is the most special.
func lackOf(err error, needs []Capability) *lackError {
	if lack, ok := errors.AsType[*lackError](err); ok {
		return lack
	}
	if errors.Is(err, llm.ErrUnsupported) || errors.Is(err, errors.ErrUnsupported) {
		c := Text
		if len(needs) > 0 {
			c = needs[len(needs)-1]
		}
		reason, _, _ := strings.Cut(err.Error(), "\n")
		return &lackError{c, reason}
	}
	return nil
}

// methods are the capabilities that an engine has by its methods.
var methods = map[Capability]struct {
	name string
	has  func(harness.Engine) bool
}{
	Streaming:         {"harness.Streamer", is[harness.Streamer]},
	PrefixReset:       {"harness.PrefixCacheResetter", is[harness.PrefixCacheResetter]},
	Sleeping:          {"harness.Sleeper", is[harness.Sleeper]},
	ActivityKnown:     {"harness.ActivityReporter", is[harness.ActivityReporter]},
	Draining:          {"Drain(context.Context) error", is[drainer]},
	AbortByID:         {"Abort(id string) bool", is[aborter]},
	OpenAIAPI:         {"URL() string", is[endpoint]},
	OllamaAPI:         {"URL() string and a Protocol() that is server.ProtocolOllama", speaksOllama},
	Embeddings:        {"harness.Embedder", is[harness.Embedder]},
	Classes:           {"harness.Classifier", is[harness.Classifier]},
	Scores:            {"harness.Scorer", is[harness.Scorer]},
	Pooling:           {"harness.Embedder or harness.Classifier", pools},
	NormalisedVectors: {"PoolingInfo() llm.PoolingInfo", is[poolingDescriber]},
	ShorterEmbeddings: {"Pool(context.Context, ...llm.PoolingRequest) ([]llm.PoolingOutput, error)", is[pooler]},
	OwnProcess: {"harness.ProcessLister with a process", func(e harness.Engine) bool {
		p, ok := e.(harness.ProcessLister)
		return ok && len(p.PIDs()) > 0
	}},
}

// speaksOllama reports whether an engine says that Ollama's own API is at its URL.
func speaksOllama(e harness.Engine) bool {
	p, ok := e.(interface {
		endpoint
		Protocol() server.Protocol
	})
	return ok && p.Protocol() == server.ProtocolOllama
}

func is[T any](e harness.Engine) bool {
	_, ok := e.(T)
	return ok
}

// missing returns the first of needs that the engine or the test lacks, nil when it has all.
func (s *suite) missing(e harness.Engine, needs []Capability) *lackError {
	for _, c := range needs {
		if slices.Contains(s.opts.without, c) {
			return &lackError{c, "the test says so (conformance.Without)"}
		}
		if m, ok := methods[c]; ok && !m.has(e) {
			return &lackError{c, fmt.Sprintf("%s does not implement %s", typeName(e), m.name)}
		}
		if option, ok := s.opts.optional(c); !ok {
			return &lackError{c, "the test has no option conformance." + option}
		}
	}
	return nil
}

// optional reports whether the option is there that a capability needs, if it needs one.
func (o *options) optional(c Capability) (name string, ok bool) {
	switch c {
	case TightMemory:
		return "Tight", o.tight != nil
	case Injection:
		return "Faulty", o.faulty != nil
	case BadStarts:
		return "MustNotStart", len(o.bad) > 0
	}
	return "", true
}

// typeName is an engine's type without its import path.
func typeName(e harness.Engine) string { return fmt.Sprintf("%T", e) }
