package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"
)

// Generate answers requests, in order. All of them are checked before any is started.
//
// Errors: [*llm.ParamError], [llm.ErrPromptTooBig] or [llm.ErrNoTokenizer] for a request that
// cannot run; [llm.ErrStopped], [llm.ErrSleeping] or [llm.ErrEngineDead] when the engine cannot;
// the context's when it ends, which aborts the requests. When requests were started and the context
// lasts, the outputs are complete in number even with an error: FinishReason says what became of
// each ("abort" when the engine was shut down meanwhile).
func (e *Engine) Generate(ctx context.Context, reqs ...Request) ([]Output, error) {
	defer runtime.KeepAlive(e)
	if err := checkContext(ctx); err != nil {
		return nil, err
	}
	rs, err := e.b.start(ctx, reqs, false)
	if err != nil {
		return nil, err
	}
	return e.wait(ctx, rs)
}

// wait returns the outputs of started requests, once they are done.
func (e *Engine) wait(ctx context.Context, rs []*request) ([]Output, error) {
	began := time.Now()
	outs := make([]Output, len(rs))
	var errs []error
	for i, r := range rs {
		over := false
		select {
		case <-r.done:
		case <-e.b.over():
			over = true
		case <-ctx.Done():
			e.b.abort(rs...)
			return nil, fmt.Errorf("engine: %d of %d requests aborted after %s, the first of them %s: %w",
				unfinished(rs[i:]), len(rs), time.Since(began).Round(time.Millisecond), r.id, ended(ctx))
		}
		out, err := r.result(over, e.b)
		outs[i] = out
		if err != nil && (len(errs) == 0 || errs[len(errs)-1].Error() != err.Error()) {
			errs = append(errs, err)
		}
	}
	if len(errs) == 1 {
		return outs, errs[0]
	}
	return outs, errors.Join(errs...)
}

func unfinished(rs []*request) int {
	n := 0
	for _, r := range rs {
		select {
		case <-r.done:
		default:
			n++
		}
	}
	return n
}

// ended is the error of a context that has ended, with its cause when someone gave one.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}
