package engine

import (
	"context"
	"fmt"
	"iter"
	"runtime"
	"sync"

	"github.com/enginetest/enginetest/llm"
)

// Stream answers one request step by step; each range over the result starts it anew. Leaving the
// loop aborts the request. An error comes last, with an empty Delta; they are those of Generate.
func (e *Engine) Stream(ctx context.Context, req Request) iter.Seq2[llm.Delta, error] {
	return e.StreamAll(ctx, req)
}

// StreamAll answers requests step by step, and is to [Engine.Stream] what Generate is for several
// requests: all of them are checked before any is started, and they are numbered in order.
// Delta.Request says which one a step is of. Leaving the loop aborts those that have not finished,
// and so does the first error, which comes last.
func (e *Engine) StreamAll(ctx context.Context, reqs ...Request) iter.Seq2[llm.Delta, error] {
	return func(yield func(llm.Delta, error) bool) {
		defer runtime.KeepAlive(e)
		if err := checkContext(ctx); err != nil {
			yield(llm.Delta{}, err)
			return
		}
		rs, err := e.b.start(ctx, reqs, true)
		if err != nil {
			yield(llm.Delta{}, err)
			return
		}
		defer e.b.abort(rs...) // those that have finished stay as they are
		if len(rs) == 1 {
			left := false
			err := e.follow(ctx, rs[0], func(d llm.Delta) bool { left = !yield(d, nil); return !left })
			if err != nil && !left {
				yield(llm.Delta{}, err)
			}
			return
		}
		e.followAll(ctx, rs, yield)
	}
}

// followAll merges the steps of several requests.
func (e *Engine) followAll(ctx context.Context, rs []*request, yield func(llm.Delta, error) bool) {
	type step struct {
		delta llm.Delta
		err   error
	}
	steps, left := make(chan step), make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for i, r := range rs {
		wg.Go(func() {
			send := func(s step) bool {
				select {
				case steps <- s:
					return true
				case <-left:
					return false
				}
			}
			err := e.follow(ctx, r, func(d llm.Delta) bool {
				d.Request = i
				return send(step{d, nil})
			})
			if err != nil {
				send(step{llm.Delta{}, err})
			}
		})
	}
	go func() { wg.Wait(); close(steps) }()
	defer wg.Wait()
	defer cancel() // a follower waits for no step that hangs
	defer close(left)
	for s := range steps {
		if !yield(s.delta, s.err) || s.err != nil {
			return
		}
	}
}

// follow yields the steps of a request, until it is over, the engine or the context ends, or yield
// returns false.
func (e *Engine) follow(ctx context.Context, r *request, yield func(llm.Delta) bool) error {
	for over := false; !over; {
		select {
		case <-r.more:
		case <-r.done:
			over = true
		case <-e.b.over():
			over = true
		case <-ctx.Done():
			return fmt.Errorf("engine: request %s aborted: %w", r.id, ended(ctx))
		}
		for _, d := range r.take() {
			if !yield(d) {
				return nil
			}
		}
	}
	_, err := r.result(true, e.b)
	return err
}
