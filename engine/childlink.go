package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/enginetest/enginetest/engine/internal/wire"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
)

// What goes over the link between an engine and its core in a child process. Commands go down;
// events come back.

// command is a call of a method of the core.
type command struct {
	ID     uint64        // its reply has the same; 0: no reply is wanted
	Method string        // a key of methods
	Within time.Duration // the caller's deadline, from now; 0: none
	Body   []byte        // the method's argument
	Cancel bool          // the caller of ID has gone; nothing else is set
}

// event is what the core has to say after a step, or when it is asked.
type event struct {
	Stats   Stats
	Updates []update
	Replies []reply
	Faults  []llm.FaultReport // after one struck: some strike the process itself
	Failed  *wireError        // what the engine has failed of; in every message from then on
	Done    bool              // and has ended all requests, but for those that hang
	Closing bool              // the shutdown has begun: the end of the process is no surprise from now on
}

// reply answers a command.
type reply struct {
	ID   uint64
	Body []byte
	Err  *wireError
}

// update is what a step did to a request.
type update struct {
	Handle uint64 // the parent's number for the request
	Deltas []llm.Delta
	Over   bool
	Out    *Output   // the whole output, once over; not of a streamed request
	Data   []float32 // of a request that pools
	Err    *wireError
}

type (
	startCommand struct {
		First    uint64 // handle of the first request; the others follow
		Stream   bool
		Requests []Request
		Pooling  []llm.PoolingRequest // in place of Requests
	}
	// opened is what a core says when it has loaded.
	opened struct {
		Config Config
		EOS    []int32
		Info   llm.PoolingInfo
		Stats  Stats
		Unused []string // tensors of the checkpoint
	}
	// closed is what a core says when it has shut down.
	closed struct {
		Report llm.ShutdownReport
		Faults []llm.FaultReport
		Stats  Stats
		Failed *wireError
		Err    *wireError // of the shutdown itself
	}
	none struct{}
)

// method makes the core's side of a call of a function with one argument and one result.
func method[In, Out any](f func(s *coreServer, ctx context.Context, in In) (Out, error)) func(context.Context,
	*coreServer, []byte) ([]byte, error) {
	return func(ctx context.Context, s *coreServer, body []byte) ([]byte, error) {
		var in In
		if err := wire.Decode(body, &in); err != nil {
			return nil, err
		}
		out, err := f(s, ctx, in)
		if err != nil {
			return nil, err
		}
		return wire.Append(nil, &out)
	}
}

// call is the parent's side: it calls a method of the core and waits for its result.
func call[Out, In any](ctx context.Context, c *child, name string, in In) (out Out, err error) {
	body, err := wire.Append(nil, &in)
	if err != nil {
		return out, fmt.Errorf("engine: %w", err)
	}
	if body, err = c.roundTrip(ctx, name, body); err != nil {
		return out, err
	}
	return out, wire.Decode(body, &out)
}

// methods are what a parent can call. start and abort keep their order; the others run beside each
// other.
var methods = map[string]func(context.Context, *coreServer, []byte) ([]byte, error){
	"open":  method((*coreServer).open),
	"start": method((*coreServer).start),
	"abort": method((*coreServer).abort),
	"abort by id": method(func(s *coreServer, _ context.Context, id string) (bool, error) {
		return s.engine().abortID(id), nil
	}),
	"reset prefix cache": method(func(s *coreServer, ctx context.Context, _ none) (none, error) {
		return none{}, s.engine().resetPrefixCache(ctx)
	}),
	"flush": method(func(s *coreServer, ctx context.Context, _ none) (none, error) {
		return none{}, s.engine().flush(ctx)
	}),
	"sleep": method(func(s *coreServer, ctx context.Context, level int) (none, error) {
		return none{}, s.engine().sleep(ctx, level)
	}),
	"wake": method(func(s *coreServer, ctx context.Context, tags []string) (none, error) {
		return none{}, s.engine().wakeUp(ctx, tags)
	}),
	"encode": method(func(s *coreServer, _ context.Context, text string) ([]int32, error) {
		return s.engine().encode(text)
	}),
	"decode": method(func(s *coreServer, _ context.Context, ids []int32) (string, error) {
		return s.engine().decode(ids)
	}),
	"holdings": method(func(s *coreServer, _ context.Context, _ none) ([]ledger.Holding, error) {
		return s.engine().holdings(), nil
	}),
	"faults": method(func(s *coreServer, _ context.Context, _ none) ([]llm.FaultReport, error) {
		return s.engine().faultReports(), nil
	}),
	"drain": method(func(s *coreServer, ctx context.Context, _ none) (none, error) {
		return none{}, s.engine().drain(ctx)
	}),
	"shutdown": method((*coreServer).shutdown),
}
