package sample

import (
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/enginetest/enginetest/llm"
)

// view is what a user's processors see of a sequence. It is the sequence's own: a processor that
// keeps or overwrites it changes no other request.
type view struct {
	tokens []int32 // prompt and output
	row    []float32
}

// process runs the user's processors on a row. Tokens that were ruled out before stay so.
func (s *State) process(row []float32) error {
	v := &s.view
	v.tokens = append(append(v.tokens, s.Prompt[min(len(v.tokens), len(s.Prompt)):]...),
		s.Output[max(len(v.tokens)-len(s.Prompt), 0):]...)
	v.row = append(v.row[:0], row...)
	var out []float32
	var err error
	done := make(chan struct{})
	go func() { // of its own: a processor may end its goroutine
		defer close(done)
		out, err = v.run(s.Params.Processors, len(s.Prompt), &err)
	}()
	<-done
	if err != nil {
		return err
	}
	for i, x := range row {
		if x > negInf || x != x {
			row[i] = out[i]
		}
	}
	return nil
}

// run calls the processors one after the other. failed is set even when a processor ends the
// goroutine.
func (v *view) run(processors []llm.LogitsProcessor, prompt int, failed *error) (out []float32, err error) {
	n, width := len(v.tokens), len(v.row)
	fail := &llm.ProcessorError{Token: n - prompt}
	over := false
	defer func() {
		if over {
			return
		}
		fail.What = "ended its goroutine (runtime.Goexit, as t.FailNow does)"
		if x := recover(); x != nil {
			fail.What, fail.Stack = fmt.Sprintf("panic: %v", x), string(debug.Stack())
			fail.Err, _ = x.(error)
		}
		*failed, err = fail, fail
	}()
	out = slices.Clip(v.row)
	for i, p := range processors {
		fail.Index = i
		if out, err = p(v.tokens[:prompt:prompt], v.tokens[prompt:n:n], out); err != nil {
			fail.What, fail.Err = err.Error(), err
			break
		}
		if len(out) != width {
			fail.What = fmt.Sprintf("returned %d logits, must be %d", len(out), width)
			err = fail
			break
		}
	}
	if over = true; err != nil {
		err = fail
	}
	return out, err
}
