package engine

import "github.com/enginetest/enginetest/llm"

// Types of package llm, which holds what passes between a test and any engine.
type (
	// Request is one prompt: a text, or token ids.
	Request        = llm.Request
	SamplingParams = llm.SamplingParams
	Output         = llm.Output
	Completion     = llm.Completion
	Logprob        = llm.Logprob
	Delta          = llm.Delta
	FinishReason   = llm.FinishReason
	Message        = llm.Message
	Fault          = llm.Fault
	FaultPoint     = llm.FaultPoint
	FaultAction    = llm.FaultAction
	FaultReport    = llm.FaultReport
	ShutdownReport = llm.ShutdownReport
	ShutdownPhase  = llm.ShutdownPhase
	ParamError     = llm.ParamError
)

// The finish reasons.
const (
	FinishStop   = llm.FinishStop
	FinishLength = llm.FinishLength
	FinishAbort  = llm.FinishAbort
	FinishError  = llm.FinishError
)

// The fault points and actions.
const (
	FaultLoad     = llm.FaultLoad
	FaultAllocate = llm.FaultAllocate
	FaultProfile  = llm.FaultProfile
	FaultForward  = llm.FaultForward
	FaultSample   = llm.FaultSample
	FaultOutput   = llm.FaultOutput
	FaultShutdown = llm.FaultShutdown

	ActError = llm.ActError
	ActPanic = llm.ActPanic
	ActHang  = llm.ActHang
	ActOOM   = llm.ActOOM
	ActExit  = llm.ActExit
	ActKill  = llm.ActKill
)

// Errors that callers test for with errors.Is.
var (
	ErrEngineDead   = llm.ErrEngineDead
	ErrStopped      = llm.ErrStopped
	ErrDraining     = llm.ErrDraining
	ErrSleeping     = llm.ErrSleeping
	ErrBlocksInUse  = llm.ErrBlocksInUse
	ErrPromptTooBig = llm.ErrPromptTooBig
	ErrOutOfMemory  = llm.ErrOutOfMemory
	ErrNoTokenizer  = llm.ErrNoTokenizer
	ErrInjected     = llm.ErrInjected
	ErrKilled       = llm.ErrKilled
)
