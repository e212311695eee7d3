package llm

import (
	"slices"
	"strings"
)

// LogprobsMode says what [Logprob] values are. The names are vLLM's.
//
// Raw values are the model's, before any sampling parameter. Processed ones are what the token was
// drawn from: after grammars, processors, biases, penalties and temperature, with every token that
// could not be drawn at −∞. Greedy sampling has no temperature. No parameter applies to a prompt's
// tokens, so theirs are raw in every mode.
type LogprobsMode string

// The modes; "" is RawLogprobs.
const (
	RawLogprobs       LogprobsMode = "raw_logprobs"
	ProcessedLogprobs LogprobsMode = "processed_logprobs"
	RawLogits         LogprobsMode = "raw_logits"
	ProcessedLogits   LogprobsMode = "processed_logits"
)

// Logits reports whether the values are logits, which are not normalized.
func (m LogprobsMode) Logits() bool { return m == RawLogits || m == ProcessedLogits }

// check returns a [*ParamError] for an unknown mode.
func (m LogprobsMode) check() error {
	known := []string{string(RawLogprobs), string(ProcessedLogprobs), string(RawLogits), string(ProcessedLogits)}
	if m == "" || slices.Contains(known, string(m)) {
		return nil
	}
	return &ParamError{Field: "LogprobsMode", Value: string(m), Bound: "one of " + strings.Join(known, ", ")}
}
