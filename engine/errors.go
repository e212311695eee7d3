package engine

import (
	"errors"
	"fmt"
)

// Errors that a caller can test for with errors.Is.
var (
	ErrEngineDead   = errors.New("engine: dead")                    // the engine failed; the cause is wrapped beside it
	ErrStopped      = errors.New("engine: stopped")                 // shut down, or shutting down
	ErrSleeping     = errors.New("engine: asleep; call Wake first") // recoverable
	ErrBlocksInUse  = errors.New("engine: prefix cache not reset")  // blocks are still in use
	ErrPromptTooBig = errors.New("engine: prompt does not fit")     // longer than MaxModelLen or than the whole KV cache
)

// ParamError is a parameter outside its range.
type ParamError struct {
	Field string // as in SamplingParams or Config
	Value any
	Bound string // what is allowed: "in (0, 1]"
}

func (e *ParamError) Error() string {
	return fmt.Sprintf("engine: %s is %v, must be %s", e.Field, e.Value, e.Bound)
}
