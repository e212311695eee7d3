package llm

import "fmt"

// LogitsProcessor changes the logits of a request's next token. It returns them: in the slice that
// it was given, or in another one of the same length. prompt and output are the tokens so far. All
// three are copies that belong to the request.
//
// Processors run where vLLM's run: after grammars, allowed tokens, bad words, the minimum of tokens
// and the bias, before penalties and temperature. A token that was ruled out before stays so. An
// error, a panic, a call of runtime.Goexit (t.FailNow) or a row of another length is a
// [*ProcessorError], which ends this request and no other. A step waits for its processors, and
// asks them again about a token that it has to draw again.
type LogitsProcessor func(prompt, output []int32, logits []float32) ([]float32, error)

// ProcessorError reports a [LogitsProcessor] that failed.
type ProcessorError struct {
	Index int    // in SamplingParams.LogitsProcessors
	Token int    // of the output, for which it was asked
	What  string // it did
	Stack string // of a panic
	Err   error  // that it returned, or panicked with; nil when there is none
}

func (e *ProcessorError) Error() string {
	s := fmt.Sprintf("LogitsProcessors[%d] at token %d of the output: %s", e.Index, e.Token, e.What)
	if e.Stack != "" {
		s += "\n" + e.Stack
	}
	return s
}

// Unwrap returns the processor's own error.
func (e *ProcessorError) Unwrap() error { return e.Err }
