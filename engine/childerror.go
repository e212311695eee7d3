package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"
	"time"

	"github.com/enginetest/enginetest/llm"
)

// crossing are the errors that are themselves on both sides of the link.
var crossing = []error{
	llm.ErrEngineDead, llm.ErrStopped, llm.ErrDraining, llm.ErrSleeping, llm.ErrBlocksInUse,
	llm.ErrPromptTooBig, llm.ErrOutOfMemory,
	llm.ErrNoTokenizer, llm.ErrInjected, llm.ErrKilled, ErrCUDALost,
	context.Canceled, context.DeadlineExceeded, fs.ErrNotExist, fs.ErrPermission, fs.ErrInvalid, io.ErrUnexpectedEOF,
	errors.ErrUnsupported, llm.ErrUnsupported,
}

// wireError is an error as it crosses: its text, and everything in it that errors.Is and errors.As
// can be asked for.
type wireError struct {
	Text       string
	Crossing   []int // indices of crossing
	Param      *wireParam
	Limit      *llm.LimitError
	Task       *llm.TaskError
	Grammar    *llm.GrammarError
	Field      *llm.UnsupportedError
	Checkpoint *wireCheckpoint
	Panic      *wirePanic
	Leak       *LeakError
	Late       *wireLate
	Start      time.Duration // of a startTimeoutError
	Errno      *uintptr
}

type wireParam struct {
	Field, Bound string
	Kind, Text   string // of the value
	Int          int64
	Float        float64
}

type wireCheckpoint struct {
	File, Tensor, Field, Reason, Got, Want string
	Err                                    *wireError
}

type wirePanic struct {
	Phase, Value, Stack string
	Err                 *wireError
}

type wireLate struct {
	Phase   string
	Running time.Duration
	Cause   *wireError
}

// pack makes an error fit to cross; nil stays nil.
func pack(err error) *wireError {
	if err == nil {
		return nil
	}
	w := &wireError{Text: err.Error()}
	for i, known := range crossing {
		if errors.Is(err, known) {
			w.Crossing = append(w.Crossing, i)
		}
	}
	var (
		param *llm.ParamError
		ckpt  *CheckpointError
		panik *PanicError
		late  *ShutdownTimeoutError
		errno syscall.Errno
	)
	if errors.As(err, &param) {
		w.Param = packParam(param)
	}
	if errors.As(err, &ckpt) {
		w.Checkpoint = &wireCheckpoint{
			ckpt.File, ckpt.Tensor, ckpt.Field, ckpt.Reason, ckpt.Got, ckpt.Want,
			pack(ckpt.Err),
		}
	}
	if errors.As(err, &panik) {
		w.Panic = &wirePanic{panik.Phase, panik.Value, panik.Stack, pack(panik.err)}
	}
	errors.As(err, &w.Leak)
	errors.As(err, &w.Limit)
	errors.As(err, &w.Task)
	errors.As(err, &w.Grammar)
	errors.As(err, &w.Field)
	if errors.As(err, &late) {
		w.Late = &wireLate{late.Phase, late.Running, pack(late.Cause)}
	}
	if start, ok := errors.AsType[startTimeoutError](err); ok {
		w.Start = start.limit
	}
	if errors.As(err, &errno) {
		n := uintptr(errno)
		w.Errno = &n
	}
	return w
}

// coreError is an error of the core process: what errors.Is and errors.As find in it, they found
// there.
type coreError struct {
	text string
	in   []error
}

func (e *coreError) Error() string   { return e.text }
func (e *coreError) Unwrap() []error { return e.in }

func (w *wireError) unpack() error {
	if w == nil {
		return nil
	}
	e := &coreError{text: w.Text}
	for _, i := range w.Crossing {
		e.in = append(e.in, crossing[i])
	}
	if p := w.Param; p != nil {
		e.in = append(e.in, p.unpack())
	}
	if w.Limit != nil {
		e.in = append(e.in, w.Limit)
	}
	if w.Task != nil {
		e.in = append(e.in, w.Task)
	}
	if w.Grammar != nil {
		e.in = append(e.in, w.Grammar)
	}
	if w.Field != nil {
		e.in = append(e.in, w.Field)
	}
	if c := w.Checkpoint; c != nil {
		e.in = append(e.in, &CheckpointError{
			File: c.File, Tensor: c.Tensor, Field: c.Field, Reason: c.Reason,
			Got: c.Got, Want: c.Want, Err: c.Err.unpack(),
		})
	}
	if p := w.Panic; p != nil {
		e.in = append(e.in, &PanicError{Phase: p.Phase, Value: p.Value, Stack: p.Stack, err: p.Err.unpack()})
	}
	if w.Leak != nil {
		e.in = append(e.in, w.Leak)
	}
	if l := w.Late; l != nil {
		e.in = append(e.in, &ShutdownTimeoutError{Phase: l.Phase, Running: l.Running, Cause: l.Cause.unpack()})
	}
	if w.Start != 0 {
		e.in = append(e.in, startTimeoutError{w.Start})
	}
	if w.Errno != nil {
		e.in = append(e.in, syscall.Errno(*w.Errno))
	}
	return e
}

// packParam keeps the value's type when it is one that parameters have, else its text.
func packParam(p *llm.ParamError) *wireParam {
	w := &wireParam{Field: p.Field, Bound: p.Bound}
	switch v := p.Value.(type) {
	case int:
		w.Kind, w.Int = "int", int64(v)
	case int32:
		w.Kind, w.Int = "int32", int64(v)
	case int64:
		w.Kind, w.Int = "int64", v
	case float64:
		w.Kind, w.Float = "float64", v
	default:
		w.Text = fmt.Sprint(v)
	}
	return w
}

func (w *wireParam) unpack() *llm.ParamError {
	p := &llm.ParamError{Field: w.Field, Bound: w.Bound, Value: w.Text}
	switch w.Kind {
	case "int":
		p.Value = int(w.Int)
	case "int32":
		p.Value = int32(w.Int)
	case "int64":
		p.Value = w.Int
	case "float64":
		p.Value = w.Float
	}
	return p
}
