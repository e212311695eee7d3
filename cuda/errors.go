package cuda

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/enginetest/enginetest/ledger"
)

// Code is a result of the driver (CUresult). It is an error, so that errors.Is(err,
// cuda.ErrOutOfMemory) works on every error of this package that a driver call caused.
type Code int32

// Results that callers tell apart. Any other Code can be compared with as well: errors.Is(err,
// cuda.Code(701)).
const (
	codeInvalidValue  Code = 1
	ErrOutOfMemory    Code = 2
	codeNoDevice      Code = 100
	codeInvalidDevice Code = 101
	codeNotFound      Code = 500
	errNotReady       Code = 600 // a query: work is still running
	ErrIllegalAddress Code = 700
	codeNotSupported  Code = 801
)

// Error returns "CUDA error 2"; an *Error has the driver's own words.
func (c Code) Error() string { return fmt.Sprintf("CUDA error %d", int32(c)) }

// Is makes a code that is a context's end match ErrContextDead, and one that is the process's end
// with CUDA ErrProcessDead as well.
func (c Code) Is(target error) bool {
	return target == ErrContextDead && c.sticky() || target == ErrProcessDead && c.endsProcess()
}

// sticky reports whether the context can do nothing more after this result: the driver answers
// every later call with the same. Source: the comments of CUresult in cuda.h.
func (c Code) sticky() bool {
	switch c {
	case 4, 214, 220, 709, 999:
		return true
	}
	return c.endsProcess()
}

// endsProcess reports whether NVIDIA documents that only a new process can use CUDA after this
// result (CUresult and cudaError_t: the process is inconsistent and has to be relaunched). Measured
// with 700: the contexts of every device answer it, and none that was released can be retained
// again.
func (c Code) endsProcess() bool {
	switch c {
	case 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911:
		return true
	}
	return false
}

// Error is a driver call that failed.
type Error struct {
	Call string // "cuMemAlloc_v2"
	Code Code
	Name string // "CUDA_ERROR_OUT_OF_MEMORY"
	Text string // "out of memory"
}

func (e *Error) Error() string {
	return fmt.Sprintf("cuda: %s: %s (%d): %s", e.Call, e.Name, int32(e.Code), e.Text)
}

func (e *Error) Unwrap() error { return e.Code }

var (
	// ErrNoDriver says that there is no usable libcuda: the library or one of its symbols is
	// missing, or the system is not supported.
	ErrNoDriver = errors.New("cuda: no driver")

	// ErrContextDead is in a sticky error, and in what calls return after it.
	ErrContextDead = errors.New("cuda: the context is dead")

	// ErrProcessDead is in an error after which this process can have no CUDA context any more, and
	// in what is refused then.
	ErrProcessDead = errors.New("cuda: dead in this process")
)

// Mistakes of the caller, found without asking the driver.
var (
	errWrongThread  = errors.New("called off the worker's thread")
	errWrongWorker  = errors.New("belongs to another worker")
	ErrUseAfterFree = errors.New("use after free")
	ErrDoubleFree   = errors.New("freed twice")
	errCapturing    = errors.New("not while a stream captures")
	ErrClosed       = errors.New("the worker is closed")
	errRange        = errors.New("out of range")
	errArguments    = errors.New("wrong arguments")
)

// misuseError is a mistake of the caller, found without asking the driver. Kind is one of
// the errors above.
type misuseError struct {
	Call   string // "Memory.Free"
	Kind   error
	Detail string
}

func (e *misuseError) Error() string {
	s := "cuda: " + e.Call + ": " + e.Kind.Error()
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

func (e *misuseError) Unwrap() error { return e.Kind }

// deadError is returned, without a driver call, by every call on a worker whose context met a
// sticky error (an illegal address, a failed launch, a lost device). Only Close is of use then. It
// matches ErrContextDead and the first error's Code.
type deadError struct {
	Call   string
	Worker string
	First  *Error // what killed the context
}

func (e *deadError) Error() string {
	next := "close the worker and open a new one"
	if e.First.Code.endsProcess() {
		next = "close the worker; " + onlyANewProcess
	}
	return fmt.Sprintf("cuda: %s: the context of %s is dead since %s; %s", e.Call, e.Worker, inner(e.First), next)
}

func (e *deadError) Unwrap() []error { return []error{ErrContextDead, e.First} }

const onlyANewProcess = "only a new process can use CUDA again"

// deadProcessError says that the driver refuses this process any new context, on any device,
// because an earlier error (an illegal address, a failed launch) left the process in a state that
// only its end repairs. What outlives a context and had not been freed before that error stays on
// the device as long as the process lives. It matches ErrProcessDead and the driver's Code.
type deadProcessError struct {
	Worker string // who met the earlier error; empty when this package did not see it
	First  *Error // the earlier error; nil when this package did not see it
	Err    *Error // what the driver answers now
}

func (e *deadProcessError) Error() string {
	since := "another user of CUDA in it met an error: now " + inner(e.Err)
	if e.First != nil {
		since = fmt.Sprintf("%s met %s", e.Worker, inner(e.First))
	}
	return fmt.Sprintf("cuda: no context in this process any more, since %s; %s: run the engine in a child (forkproc.Run, engine.ChildProcess)",
		since, onlyANewProcess)
}

func (e *deadProcessError) Unwrap() []error { return []error{ErrProcessDead, e.Err} }

// AllocError is an allocation that failed, with what is needed to see why.
type AllocError struct {
	Worker      string
	Owner, Kind string
	Bytes       int64
	Free, Total int64 // of the device, after the failure; 0 when the driver would not say, and of host memory
	Holdings    []ledger.Holding
	Err         error
}

func (e *AllocError) Error() string {
	s := fmt.Sprintf("cuda: no %s (%s) for %s on %s: %s", ledger.FormatBytes(e.Bytes), e.Kind, e.Owner, e.Worker,
		inner(e.Err))
	if (e.Kind == kindPinned || e.Kind == kindLocked) && errors.Is(e.Err, ErrOutOfMemory) {
		s += "; it is the host's memory, not the device's"
	}
	if e.Total > 0 {
		s += fmt.Sprintf("; %s of %s free", ledger.FormatBytes(e.Free), ledger.FormatBytes(e.Total))
	}
	return s + "; " + owners(e.Holdings)
}

func (e *AllocError) Unwrap() error { return e.Err }

// CompileError is a module that the driver refused, with the log of its compiler.
type CompileError struct {
	Module string
	Log    string // the JIT's error log; empty when it wrote none
	Err    error
}

func (e *CompileError) Error() string {
	s := fmt.Sprintf("cuda: module %s: %s", e.Module, inner(e.Err))
	if e.Log != "" {
		s += "\n    " + strings.ReplaceAll(strings.TrimSpace(e.Log), "\n", "\n    ")
	}
	return s
}

func (e *CompileError) Unwrap() error { return e.Err }

// PanicError is a panic in a function that ran on a worker's thread.
type PanicError struct {
	Worker string
	Value  any
	Stack  []byte
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("cuda: panic on the thread of %s: %v\n%s", e.Worker, e.Value, e.Stack)
}

// Unwrap returns the panic's value when it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// HangError says that a worker's thread did not come back in time. When it never does, only the end
// of the process frees what it holds.
type HangError struct {
	Worker string
	Call   string // what the caller waited for: "Do", "Close"
	Driver string // the driver call that does not return; empty when Go code of the caller is running
	For    time.Duration
	Err    error // the context's error
}

func (e *HangError) Error() string {
	where := "in Go code"
	if e.Driver != "" {
		where = "in the driver's " + e.Driver
	}
	return fmt.Sprintf("cuda: %s: %s: the worker's thread has been busy for %s, %s: %v", e.Worker, e.Call,
		e.For.Round(time.Millisecond), where, e.Err)
}

func (e *HangError) Unwrap() error { return e.Err }

// LeakError is what Close found still allocated. All of Freed has been given back by Close; Kept
// could not be and stays in the ledger.
type LeakError struct {
	Worker string
	Freed  []ledger.Holding
	Kept   []ledger.Holding
	Errs   []error // why Kept could not be freed
}

func (e *LeakError) Error() string {
	var b strings.Builder
	n, allocations := len(e.Freed)+len(e.Kept), "allocations"
	if n == 1 {
		allocations = "allocation"
	}
	fmt.Fprintf(&b, "cuda: %s was closed with %d %s still live", e.Worker, n, allocations)
	if len(e.Freed) > 0 {
		fmt.Fprintf(&b, "\n  freed now, because the owner did not:\n%s",
			strings.TrimRight(ledger.Format(e.Freed), "\n"))
	}
	if len(e.Kept) > 0 {
		fmt.Fprintf(&b, "\n  not freed, on the device until the process ends:\n%s",
			strings.TrimRight(ledger.Format(e.Kept), "\n"))
	}
	for _, err := range e.Errs {
		fmt.Fprintf(&b, "\n  because: %s", strings.ReplaceAll(inner(err), "\n", "\n    and: "))
	}
	return b.String()
}

func (e *LeakError) Unwrap() []error { return e.Errs }

// owners sums holdings up in one line: "held: weights 2.3 GiB, kv_cache 1.0 GiB".
func owners(hs []ledger.Holding) string {
	sums := map[string]int64{}
	var order []string
	for _, h := range hs {
		if h.Bytes == 0 {
			continue
		}
		if _, seen := sums[h.Owner]; !seen {
			order = append(order, h.Owner) // holdings come largest first
		}
		sums[h.Owner] += h.Bytes
	}
	if len(order) == 0 {
		return "the ledger holds nothing"
	}
	parts := make([]string, len(order))
	for i, o := range order {
		parts[i] = o + " " + ledger.FormatBytes(sums[o])
	}
	return "the ledger holds " + strings.Join(parts, ", ")
}

// inner is an error's text inside that of another: once "cuda:" is enough.
func inner(err error) string { return strings.TrimPrefix(err.Error(), "cuda: ") }
