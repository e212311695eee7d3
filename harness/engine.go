package harness

import (
	"context"
	"iter"

	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
)

// Engine is what a fixture needs of an engine. The bundled *engine.Engine has these methods;
// anything else that generates and shuts down can have them: a server started with os/exec, a
// client of one that runs elsewhere.
type Engine interface {
	// Generate answers every request, in order. It is called from several goroutines.
	Generate(ctx context.Context, reqs ...llm.Request) ([]llm.Output, error)
	// Shutdown ends the engine and releases what it holds. A second call does nothing.
	Shutdown(ctx context.Context) error
}

// What an Engine can do besides. A [Runner] method that needs one of these fails the test, naming
// the interface, when the engine lacks it; the teardown checks use what is there.
type (
	// Streamer returns tokens as they come.
	Streamer interface {
		Stream(ctx context.Context, req llm.Request) iter.Seq2[llm.Delta, error]
	}
	// PrefixCacheResetter forgets cached prompts.
	PrefixCacheResetter interface {
		ResetPrefixCache(ctx context.Context) error
	}
	// Sleeper releases device memory for a while. Level 1 keeps the weights on the host, level 2
	// keeps nothing.
	Sleeper interface {
		Sleep(ctx context.Context, level int) error
		Wake(ctx context.Context, tags ...string) error
	}
	// Embedder returns one vector a text.
	Embedder interface {
		Embed(ctx context.Context, texts ...string) ([][]float32, error)
	}
	// Classifier returns the probability of each class, one slice a text.
	Classifier interface {
		Classify(ctx context.Context, texts ...string) ([][]float32, error)
	}
	// Scorer rates pairs of texts.
	Scorer interface {
		Score(ctx context.Context, query string, texts ...string) ([]float32, error)
	}
	// Chatter answers a conversation with the model's own template.
	Chatter interface {
		Chat(ctx context.Context, messages []llm.Message, params llm.SamplingParams) (llm.Output, error)
	}
	// ProcessLister has processes of its own: their ids while it runs. After Shutdown each must be
	// gone.
	ProcessLister interface {
		PIDs() []int
	}
	// PartLister lists, by name, pointers to parts of the engine (a model runner, a cache) that
	// no one may reach after Shutdown. It is called once, when the engine has started; the pointers
	// are held weakly.
	PartLister interface {
		Parts() map[string]any
	}
	// FaultReporter has injected faults; each must have fired when the test ends.
	FaultReporter interface {
		Faults() []llm.FaultReport
	}
	// ActivityReporter says what the engine is working on now. A [Pool] waits until that is
	// nothing.
	ActivityReporter interface {
		Activity(ctx context.Context) (llm.Activity, error)
	}
	// Resetter returns the engine to the state after its start: nothing runs, nothing is cached.
	Resetter interface {
		Reset(ctx context.Context) error
	}
	// EOSTokenLister knows the tokens that end a sequence. An engine that lacks it has its beams
	// run to maxTokens.
	EOSTokenLister interface {
		EOSTokenIDs() []int32
	}
	// ShutdownReporter says what its last Shutdown did, phase by phase.
	ShutdownReporter interface {
		ShutdownReport() llm.ShutdownReport
	}
)

// Holder lists the device memory that an engine owns; after Shutdown the list must be empty.
type Holder = ledger.Reporter
