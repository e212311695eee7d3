package engine

import (
	"context"

	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
)

// backend does an Engine's work: a core in this process, or the link to one in a child process. It
// never refers to the Engine, so that a handle that was dropped can be noticed. What the methods
// promise is said at those of Engine.
type backend interface {
	start(ctx context.Context, reqs []Request, stream bool) ([]*request, error)
	startPooling(ctx context.Context, reqs []llm.PoolingRequest) ([]*request, error)
	poolingInfo() llm.PoolingInfo
	abort(rs ...*request)
	abortID(id string) bool
	resetPrefixCache(ctx context.Context) error
	flush(ctx context.Context) error
	sleep(ctx context.Context, level int) error
	wakeUp(ctx context.Context, tags []string) error
	encode(text string) ([]int32, error)
	decode(ids []int32) (string, error)

	drain(ctx context.Context) error
	shutdown(ctx context.Context) error
	shutdownReport() llm.ShutdownReport
	over() <-chan struct{}
	err() error

	config() Config
	eosTokenIDs() []int32
	counters() Stats
	holdings() []ledger.Holding
	faultReports() []llm.FaultReport
	parts() map[string]any
	pids() []int
	reportDropped()
}

var _ backend = (*core)(nil)
