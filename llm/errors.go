package llm

import (
	"errors"
	"fmt"
)

// Errors that callers test for with errors.Is.
var (
	ErrEngineDead   = errors.New("engine: dead")    // the engine failed; it also wraps the cause
	ErrStopped      = errors.New("engine: stopped") // shut down, or shutting down
	ErrDraining     = fmt.Errorf("%w: draining, no new work", ErrStopped)
	ErrSleeping     = errors.New("engine: asleep; call Wake first") // recoverable
	ErrBlocksInUse  = errors.New("engine: prefix cache not reset")  // blocks are still in use
	ErrPromptTooBig = errors.New("engine: prompt does not fit")     // longer than MaxModelLen or than the KV cache
	ErrOutOfMemory  = errors.New("engine: out of device memory")
	ErrNoTokenizer  = errors.New("engine: no tokenizer") // the checkpoint has none, or it was not loaded
	ErrInjected     = errors.New("engine: injected fault")
	ErrKilled       = errors.New("engine: core process killed") // by Shutdown, because it did not end otherwise
	ErrUnsupported  = errors.New("engine: unsupported operation")
)

// ParamError reports a parameter outside its range.
type ParamError struct {
	Field string // as in SamplingParams or in the engine's configuration
	Value any
	Bound string // what is allowed: "in (0, 1]"
}

func (e *ParamError) Error() string {
	return fmt.Sprintf("engine: %s is %v, must be %s", e.Field, e.Value, e.Bound)
}
