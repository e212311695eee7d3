package llm

import "fmt"

// Task says what an engine does with its model.
type Task string

// The tasks.
const (
	TaskGenerate Task = "generate" // continue prompts
	TaskEmbed    Task = "embed"    // reduce inputs to vectors
	TaskClassify Task = "classify" // reduce inputs to a number per class
)

// PoolingRequest is one input of a pooling model: a text or token ids, or a pair of texts.
type PoolingRequest struct {
	ID             string // for Abort and logs; "" gets a fresh one
	Prompt         string
	Pair           string  // a second text, read behind Prompt as a cross-encoder does; "" is none
	PromptTokenIDs []int32 // used instead of Prompt and Pair when not nil
	// segment of each of PromptTokenIDs, for models that tell segments apart; nil: all are 0
	TokenTypeIDs []int32
	Client       string // whom it is for: clients share the engine evenly; "" makes each call a client of its own
	Pooling      PoolingParams
}

// PoolingParams says how the hidden states of a request become its numbers.
type PoolingParams struct {
	Task Task // what is wanted; "" is what the engine was opened for, another task is a [*TaskError]
	// Dimensions keeps the first numbers of an embedding (Matryoshka embeddings), before it is
	// normalised; 0 keeps all. Only for TaskEmbed.
	Dimensions int
	// UseActivation overrides what the checkpoint says: whether an embedding is normalised to length
	// 1, whether the logits of classes become probabilities. nil is the checkpoint's.
	UseActivation *bool
}

// PoolingOutput is what a pooling request returned.
type PoolingOutput struct {
	RequestID      string
	PromptTokenIDs []int32
	Data           []float32 // the embedding, or a number per class
	CachedTokens   int       // prompt tokens that came out of the prefix cache
}

// TextPair is a query and a text that is rated against it.
type TextPair struct{ Query, Text string }

// PoolingInfo describes how a pooling model reduces its inputs.
type PoolingInfo struct {
	Task       Task
	Pooling    string   // "last", "mean" or "cls"
	Dimensions int      // of an embedding; classes of TaskClassify
	Labels     []string // of the classes, in order
	Normalized bool     // embeddings have length 1 unless a request says otherwise
	Activation string   // of the classes: "softmax", "sigmoid" or "none"
}

// TaskError reports a call that an engine's task does not allow. It is an [ErrUnsupported].
type TaskError struct {
	Verb   string // "generate", "embed", "classify", "score"
	Task   Task   // of the engine
	Model  string
	Advice string // what would allow it
}

func (e *TaskError) Error() string {
	return fmt.Sprintf("engine: cannot %s: %s was opened to %s; %s", e.Verb, e.Model, e.Task, e.Advice)
}

// Unwrap returns [ErrUnsupported].
func (e *TaskError) Unwrap() error { return ErrUnsupported }
