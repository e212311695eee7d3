// Package modelrunner executes one engine step on one device: it holds the weights, the KV cache
// and the sampler of that device.
//
// The scheduler says what to compute as a [Batch]; a [Runner] computes it. There is one Runner a
// device kind: the CPU's is in this package.
package modelrunner

import (
	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/ledger"
)

// Batch is one step: the tokens of all scheduled sequences in a row (T of them), and where each
// sequence's part lies.
type Batch struct {
	Tokens    []int32 // [T]
	Positions []int32 // [T] position of each token in its sequence
	Slots     []int32 // [T] where its key and value go: block*BlockSize + offset
	Seqs      []Seq
	// [T] the segment of each token, for models that tell segments apart; empty: all are 0
	TokenTypes []int32
}

// Seq is one sequence's part of a Batch.
type Seq struct {
	Start, Len int           // its rows: Tokens[Start : Start+Len]
	Context    int           // tokens in the KV cache after this step; the last row's position + 1
	Blocks     []int32       // block table: block i holds the positions [i*BlockSize, (i+1)*BlockSize)
	Sampler    *sample.State // draws a token from the last row; nil when the prompt goes on in a later chunk
	// Drafts are the tokens of the last rows when these were only proposed: each is verified by the
	// row before it, and Sampler draws until one is rejected.
	Drafts []int32
	MaxLen int // tokens that the sequence may have in the end; a runner that proposes drafts looks at it
	// PromptLogprobs asks for log-probabilities of prompt tokens: for each of the first
	// len(Targets) rows, of the target (the next prompt token) and of the PromptLogprobs most
	// likely tokens. -1: none.
	PromptLogprobs int
	LogprobsMode   sample.Mode // of these; Processed is not set: no parameter applies to a prompt
	Targets        []int32
	Embeds         [][]float32 // in place of the embeddings of the first rows' tokens
	Pool           bool        // of a pooling model: the last row completes the sequence, and its numbers are wanted
}

// SeqResult is what a step gave for one Seq.
type SeqResult struct {
	Token          int32            // the sampled token, when Seq.Sampler was set
	Logprobs       []sample.Logprob // of that token, when its sampler asks for them
	More           []sample.Drawn   // the tokens after it: one for each of Seq.Drafts that was accepted
	Drafts         []int32          // proposed to follow them, valid until the next step
	PromptLogprobs [][]sample.Logprob
	Pooled         []float32 // the hidden state or the score of each class, when Seq.Pool was set
	Err            error     // this sequence failed alone; its batch mates are right
}

// Runner executes steps on one device. It is not safe for concurrent use: the engine's loop is its
// only caller.
type Runner interface {
	// KVBytesPerBlock is the size of one KV block over all layers.
	KVBytesPerBlock() int64
	// FreeMemory is what the device could still give to the KV cache, and its total, in bytes.
	FreeMemory() (free, total int64, err error)
	// AllocateKV makes a KV cache of this many blocks. Once, and again after Sleep.
	AllocateKV(blocks int) error
	// Execute runs one step. An error is the engine's death; what concerns one sequence alone is in
	// its SeqResult.
	Execute(*Batch) ([]SeqResult, error)
	// Holdings lists the device memory that the runner owns.
	Holdings() []ledger.Holding
	// Close releases everything. It can be called once on any Runner, half-built too, and reports
	// what would not go.
	Close() error
}

// Threaded is a Runner that has a thread of its own.
type Threaded interface {
	// OnThread runs f on the thread, where calls of the runner need no hop to it, and returns f's
	// error. The thread does nothing else meanwhile. Close comes after.
	OnThread(f func() error) error
}

// OnThread runs f on the thread of r, or on this one if r has none.
func OnThread(r Runner, f func() error) error {
	if t, ok := r.(Threaded); ok {
		return t.OnThread(f)
	}
	return f()
}

// Sleeper is a Runner that can give its device memory back for a while. Between Sleep and the calls
// that undo it, Execute is an error.
type Sleeper interface {
	// Sleep frees the device memory, all of it; with keep the weights stay on the host, or on the
	// device when the host has no room for them (then that is in the error). Again is nothing, or
	// the step from kept weights to none. Memory that would not go is in the error, stays in the
	// ledger, and the calls that undo Sleep try once more before anything else.
	Sleep(keep bool) error
	// WakeWeights takes back all but the KV cache, which AllocateKV does, in any order. When it
	// fails, it has taken nothing: it can be called again.
	WakeWeights() error
}

// KVCopier is a Runner whose KV blocks can be copied to host memory and back, KVBytesPerBlock each.
// Both calls return when the copy is done, and may run beside Execute, in other goroutines, as long
// as no step writes the block that is read, or touches the one that is written.
type KVCopier interface {
	ReadKV(block int32, dst []byte) error
	WriteKV(block int32, src []byte) error
}
