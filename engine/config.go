package engine

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/enginetest/enginetest/llm"
)

// Core says in which process an engine loads its model and computes.
type Core int

// The places of a core.
const (
	InProcess Core = iota
	// ChildProcess is a second run of this program that is diverted before main, before TestMain
	// and before any test: package engine's init serves the engine there and never returns, so only
	// init functions of packages that engine does not depend on, and none that depends on it, run
	// too. The device memory is the child's: it is gone when the child is, however it ends. The
	// child cannot outlive this process. Linux only.
	ChildProcess
)

func (c Core) String() string {
	switch c {
	case InProcess:
		return "in-process"
	case ChildProcess:
		return "child process"
	}
	return fmt.Sprintf("Core(%d)", int(c))
}

// Config says which model to serve and with how much memory. The zero value of every field but
// Model is a usable default.
type Config struct {
	Model string // folder of a Hugging Face checkpoint
	// "cpu", "cuda", "cuda:1", "cuda:GPU-…"; of several "cuda:0,2", or the first of them; "" takes
	// GPUs when there are enough
	Device string

	// TensorParallel is how many devices share the model, all of them in the process of the core; 0
	// is 1. The CPU emulates them ("cpu:0", "cpu:1", …), each with memory and threads of its own.
	// Every device has the same number of KV blocks, so sizes below are of each device, but for
	// Threads and OffloadBytes, which are of all. The number must divide the model's attention
	// heads and intermediate size, and divide or be a multiple of its KV heads.
	TensorParallel int

	// Task is what the model is for: TaskGenerate, TaskEmbed or TaskClassify; "" is what the
	// checkpoint says. A model that generates can be opened to embed.
	Task llm.Task
	// Pooling is the hidden state that is an embedding: PoolingLast, PoolingMean, PoolingCLS or
	// PoolingPooler; "" is what the files of sentence-transformers say, else the last of a causal
	// model and the first of an encoder.
	Pooling string

	Core Core // where the engine computes: InProcess, or ChildProcess

	Speculative Speculative // proposes tokens that the model verifies; the zero value does not

	Threads             int // CPU device: worker threads, shared out among the devices; 0 is GOMAXPROCS
	BlockSize           int // tokens in a KV block; 0 is 16
	MaxModelLen         int // longest prompt + output; 0 is what the checkpoint and the KV cache allow
	MaxNumSeqs          int // sequences in one step; 0 is 64
	MaxNumBatchedTokens int // tokens in one step; 0 is 2048
	// share of the device's memory for weights and KV cache, in (0, 1]; 0 is 0.92 on a GPU, and on
	// the CPU a KV cache that holds 8 sequences of MaxModelLen, at most 1 GiB and half of what is
	// free
	MemoryUtilization float64
	KVCacheBytes      int64 // size of the KV cache; overrides MemoryUtilization
	// sequences of all unfinished requests, those that run included; 0 is 32768. One client may
	// hold half of what the others leave
	MaxWaitingSeqs int
	// host memory for them, estimated from their prompts and parameters; 0 is 256 MiB, shared in
	// the same way
	MaxWaitingBytes int64
	// host memory for KV blocks that the device has no room for (a second prefix cache); 0 is off
	OffloadBytes          int64
	Connector             Connector // shares KV blocks with other engines; the zero value does not
	DisablePrefixCache    bool
	DisableChunkedPrefill bool
	SkipTokenizer         bool // token ids only, even when the checkpoint has a tokenizer

	// StartTimeout bounds Open, besides its context; 0 is 10 minutes. StepTimeout bounds one step:
	// an engine whose step lasts longer has failed, and its callers are told although the step
	// still hangs; 0 is no bound.
	StartTimeout, StepTimeout time.Duration

	Seed         int64       // of requests that have none
	RecordStacks bool        // the ledger keeps the stack of every allocation (about 1 µs each)
	Faults       []llm.Fault // to inject; see fixtures/fault
	Logger       *slog.Logger
}
