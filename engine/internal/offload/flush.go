package offload

import (
	"context"
	"slices"
	"time"
)

// Flush returns what waits for the transfers that are queued or under way now: a [*LostError] when
// stores failed, and a [*BusyError] when the context ends first. The transfers go on then. wait may
// be called from any goroutine.
func (t *Tier) Flush() (wait func(context.Context) error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.outOfUse; err != nil {
		return func(context.Context) error { return err }
	}
	all := slices.Concat(t.active, t.queue)
	return func(ctx context.Context) error { return t.wait(ctx, all) }
}

func (t *Tier) wait(ctx context.Context, all []*transfer) error {
	began, lost := time.Now(), LostError{}
	for i, x := range all {
		select {
		case <-x.ended:
		case <-ctx.Done():
			e := &BusyError{Waited: time.Since(began), Transfers: len(all) - i, Cause: context.Cause(ctx)}
			t.mu.Lock()
			e.Oldest, e.Running = x.String(), time.Since(x.began)
			t.mu.Unlock()
			return e
		}
		if !x.store {
			continue
		}
		if lost.Of++; x.err != nil {
			if lost.Lost++; lost.Cause == nil {
				lost.Cause = x.err
			}
		}
	}
	if lost.Lost > 0 {
		return &lost
	}
	return nil
}
