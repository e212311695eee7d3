package engine

import "github.com/enginetest/enginetest/llm"

// What a call types, by the names that it has in package llm, which holds what passes between a
// test and any engine: errors, faults, finish reasons and the rest are found there.
type (
	// Request is [llm.Request]: one prompt: a text, or token ids.
	Request = llm.Request
	// SamplingParams is [llm.SamplingParams]: how a request's tokens are chosen.
	SamplingParams = llm.SamplingParams
	// Output is [llm.Output]: what a request returned.
	Output = llm.Output
	// Message is [llm.Message]: one turn of a conversation.
	Message = llm.Message
)
