package engine

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/engine/internal/cpu"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
)

// ErrCUDALost is in the cause of an engine's death, and in what Open says afterwards, when a fault
// of the device (an illegal address, a failed launch) has left a process without any CUDA context,
// on all its devices.
var ErrCUDALost = errors.New("engine: CUDA is lost, on all devices, to the process that computed: only a new process can use it; " +
	"with Config.Core ChildProcess that is the core's alone, and another engine can be opened")

func paramError(field string, value any, bound string) *llm.ParamError {
	return &llm.ParamError{Field: field, Value: value, Bound: bound}
}

// PanicError is a panic inside the engine. It unwraps to the panic's value when that is an error.
type PanicError struct {
	Phase string // what the engine was doing
	Value string // of the panic, printed: the value itself could keep the engine reachable
	Stack string
	err   error
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("panic during %s: %s\n%s", e.Phase, e.Value, strings.TrimSpace(e.Stack))
}

// Unwrap is the panic's value, when that is an error.
func (e *PanicError) Unwrap() error { return e.err }

// LeakError is device memory that Shutdown could not give back.
type LeakError struct{ Holdings []ledger.Holding }

func (e *LeakError) Error() string {
	var sum int64
	for _, h := range e.Holdings {
		sum += h.Bytes
	}
	s := fmt.Sprintf("engine: %s of device memory still held after shutdown, allocations: %d\n%s",
		ledger.FormatBytes(sum), len(e.Holdings), strings.TrimRight(ledger.Format(e.Holdings), "\n"))
	if len(e.Holdings) > 0 && e.Holdings[0].Stack == nil {
		s += "\n    set Config.RecordStacks to see where they were allocated"
	}
	return s
}

// ShutdownTimeoutError says what Shutdown was still waiting for when its context ended. The
// shutdown goes on; another call of Shutdown waits for it again.
type ShutdownTimeoutError struct {
	Phase   string        // what the engine was doing
	Running time.Duration // for how long
	Cause   error         // the context's
}

func (e *ShutdownTimeoutError) Error() string {
	return fmt.Sprintf("engine: shutdown not finished: %s has been running for %s: %v", e.Phase,
		e.Running.Round(time.Millisecond), e.Cause)
}

// Unwrap is the context's error.
func (e *ShutdownTimeoutError) Unwrap() error { return e.Cause }

// CheckpointError is what is wrong with a checkpoint: it names the file, the tensor or field, what
// it has and what is accepted.
type CheckpointError = checkpoint.Error

// public adds the error that a user can test for to one of an internal package.
func public(err error) error {
	var onGPU *cuda.PanicError
	var panicked *PanicError
	if errors.As(err, &onGPU) && !errors.As(err, &panicked) {
		err = panicError("work on the GPU's thread", onGPU.Value, onGPU.Stack)
	}
	var onRank *modelrunner.Panic
	if errors.As(err, &onRank) && !errors.As(err, &panicked) {
		err = &PanicError{
			Phase: "work of " + onRank.Rank, Value: onRank.Value, Stack: onRank.Stack,
			err: onRank.Unwrap(),
		}
	}
	if errors.Is(err, cuda.ErrProcessDead) && !errors.Is(err, ErrCUDALost) {
		err = fmt.Errorf("%w: %w", ErrCUDALost, err)
	}
	var oom *cpu.OutOfMemory
	if (errors.As(err, &oom) || errors.Is(err, cuda.ErrOutOfMemory)) && !errors.Is(err, llm.ErrOutOfMemory) {
		return fmt.Errorf("%w: %w", llm.ErrOutOfMemory, err)
	}
	return err
}

// fatal reports whether an engine ends with this error, whatever it was doing: after a panic
// nothing is sure, and a dead context does nothing any more.
func fatal(err error) bool {
	var p *PanicError
	return errors.As(err, &p) || errors.Is(err, cuda.ErrContextDead)
}

// dead is the error of every request to an engine that failed of cause.
func dead(cause error) error { return fmt.Errorf("%w: %w", llm.ErrEngineDead, cause) }
