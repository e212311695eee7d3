// Package sample turns a row of logits into a token, the way vLLM's sampler does: the processors in
// vLLM's order, then a draw that depends only on the request's seed and the token's position, never
// on the batch.
package sample

import (
	"github.com/enginetest/enginetest/engine/internal/grammar"
	"github.com/enginetest/enginetest/llm"
)

// Params are a request's sampling parameters, resolved: validated, every default filled in, words
// turned into token ids. TopP, TypicalP and RepetitionPenalty are off at 0 too, so that the zero
// value is greedy.
type Params struct {
	Temperature       float64 // 0 is greedy
	TopK              int     // 0 is off
	TopP              float64 // 1 is off
	MinP              float64 // 0 is off
	TypicalP          float64 // 1 is off
	EpsilonCutoff     float64 // 0 is off
	RepetitionPenalty float64 // 1 is off
	PresencePenalty   float64 // 0 is off
	FrequencyPenalty  float64 // 0 is off
	NoRepeatNGram     int     // 0 is off
	LogitBias         map[int32]float32
	Allowed           []int32   // nil allows every token
	BadWords          [][]int32 // no output may contain one of these sequences
	MinTokens         int       // StopIDs are masked until this many tokens are out
	StopIDs           []int32   // EOS and stop_token_ids
	Processors        []llm.LogitsProcessor
	Seed              uint64
	Grammar           *grammar.Grammar // that the output must match; nil: none
	LogprobsMode      Mode
	Logprobs          int // -1: none; 0: the sampled token's only; k: the k most likely too; the vocabulary's size: all
}

// Logprob is one token's log-probability at one position.
type Logprob struct {
	Token   int32
	Logprob float32
	Rank    int // 1 is the most likely token
}
