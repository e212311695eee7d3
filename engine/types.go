package engine

import "github.com/enginetest/enginetest/llm"

// Types of package llm, which holds what passes between a test and any engine.
type (
	// Request is [llm.Request]: one prompt: a text, or token ids.
	Request = llm.Request
	// SamplingParams is [llm.SamplingParams]: how a request's tokens are chosen.
	SamplingParams = llm.SamplingParams
	// Output is [llm.Output]: what a request returned.
	Output = llm.Output
	// Completion is [llm.Completion]: one output of a request.
	Completion = llm.Completion
	// Logprob is [llm.Logprob]: a token's log-probability at one position.
	Logprob = llm.Logprob
	// Delta is [llm.Delta]: what one step added to a streamed completion.
	Delta = llm.Delta
	// FinishReason is [llm.FinishReason]: why a completion ended.
	FinishReason = llm.FinishReason
	// Message is [llm.Message]: one turn of a conversation.
	Message = llm.Message
	// Fault is [llm.Fault]: an injected failure.
	Fault = llm.Fault
	// FaultPoint is [llm.FaultPoint]: a place where a Fault can strike.
	FaultPoint = llm.FaultPoint
	// FaultAction is [llm.FaultAction]: what happens when a Fault strikes.
	FaultAction = llm.FaultAction
	// FaultReport is [llm.FaultReport]: whether a Fault struck.
	FaultReport = llm.FaultReport
	// ShutdownReport is [llm.ShutdownReport]: how an engine ended, phase by phase.
	ShutdownReport = llm.ShutdownReport
	// ShutdownPhase is [llm.ShutdownPhase]: one step of a shutdown.
	ShutdownPhase = llm.ShutdownPhase
	// ParamError is [llm.ParamError]: a parameter outside its range.
	ParamError = llm.ParamError
	// StructuredOutputs is [llm.StructuredOutputs]: a language that an output must be in.
	StructuredOutputs = llm.StructuredOutputs
	// GrammarError is [llm.GrammarError]: structured outputs that the engine cannot follow.
	GrammarError = llm.GrammarError
	// LimitError is [llm.LimitError]: more requests than an engine may hold.
	LimitError = llm.LimitError
	// Task is [llm.Task]: what an engine does with its model.
	Task = llm.Task
	// TaskError is [llm.TaskError]: a call that an engine's task does not allow.
	TaskError = llm.TaskError
	// PoolingRequest is [llm.PoolingRequest]: one input of a pooling model.
	PoolingRequest = llm.PoolingRequest
	// PoolingParams is [llm.PoolingParams]: how hidden states become a request's numbers.
	PoolingParams = llm.PoolingParams
	// PoolingOutput is [llm.PoolingOutput]: what a pooling request returned.
	PoolingOutput = llm.PoolingOutput
	// PoolingInfo is [llm.PoolingInfo]: how a pooling model reduces its inputs.
	PoolingInfo = llm.PoolingInfo
	// TextPair is [llm.TextPair]: a query and a text that is rated against it.
	TextPair = llm.TextPair
)

// The tasks.
const (
	TaskGenerate = llm.TaskGenerate
	TaskEmbed    = llm.TaskEmbed
	TaskClassify = llm.TaskClassify
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
	ErrUnsupported  = llm.ErrUnsupported
)
