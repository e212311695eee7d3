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

// LimitError reports requests that an engine does not take because it has as many as it may hold. A
// client may hold at most as much as it leaves free for others.
type LimitError struct {
	Limit string // the option of the engine's configuration that sets the bound
	Unit  string // what is counted: "sequences", "bytes"
	Want  int64  // what the refused requests need
	Held  int64  // what the same client's unfinished requests hold
	Free  int64  // what no client holds
	Most  int64  // the bound, over all clients
}

// Never reports whether the requests cannot be taken however little the engine has to do: they must
// be split, or the bound raised. Others can be tried again later.
func (e *LimitError) Never() bool { return e.Want > e.Most-e.Want }

func (e *LimitError) Error() string {
	advice := "try again later"
	if e.Never() {
		advice = "split them, or raise it"
	}
	return fmt.Sprintf("engine: %s is %d %s: the requests need %d, their client holds %d, %d are free, and a client leaves as many free as it holds; %s",
		e.Limit, e.Most, e.Unit, e.Want, e.Held, e.Free, advice)
}

// ParamError reports a parameter outside its range.
type ParamError struct {
	Field string // as in SamplingParams or in the engine's configuration
	Value any
	Bound string // what is allowed: "in (0, 1]"
}

func (e *ParamError) Error() string {
	return fmt.Sprintf("engine: %s is %v, must be %s", e.Field, e.Value, e.Bound)
}

// UnsupportedError reports a field of a request that an engine cannot follow. It is an
// [ErrUnsupported].
type UnsupportedError struct {
	Field  string
	Why    string
	Advice string // what would allow it
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("engine: %s is not supported: %s; %s", e.Field, e.Why, e.Advice)
}

// Unwrap returns [ErrUnsupported].
func (e *UnsupportedError) Unwrap() error { return ErrUnsupported }
