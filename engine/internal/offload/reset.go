package offload

import (
	"context"
	"errors"
	"slices"
	"time"
)

// drain returns up every transfer and waits until the connector is idle, at most until ctx ends or
// Options.Timeout is over. Even when it is not, device memory is safe from it.
func (t *Tier) drain(ctx context.Context) error {
	t.mu.Lock()
	all := append(slices.Clone(t.active), t.queue...)
	t.queue = nil
	t.mu.Unlock()
	t.giveUpAll(all)

	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, t.options.Timeout)
	defer cancel()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live == 0 {
		return nil
	}
	if t.idle == nil {
		t.idle = make(chan struct{})
	}
	idle := t.idle
	t.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
	t.mu.Lock()
	if t.live == 0 {
		return nil
	}
	e := &BusyError{Waited: time.Since(began), Transfers: len(t.active), Cause: ctx.Err()}
	if len(t.active) > 0 {
		e.Oldest, e.Running = t.active[0].String(), time.Since(t.active[0].began)
	}
	return e
}

// Reset returns up every transfer, releases all blocks of the device, forgets what is kept, and
// puts a tier back to use. When the connector stays busy (a [BusyError]), nothing is forgotten and
// the tier is out of use until a Reset goes well: what it keeps is not found either.
func (t *Tier) Reset(ctx context.Context) error {
	err := t.drain(ctx)
	t.Finish()
	if err == nil {
		err = t.conn.Reset()
	}
	t.mu.Lock()
	t.outOfUse = err
	t.mu.Unlock()
	return err
}

// Close returns up every transfer and closes the connector; one that stays busy (a [BusyError]) is
// not closed, and its memory stays where it is. The device's books are left alone: Close works
// after any failure.
func (t *Tier) Close(ctx context.Context) error {
	if err := t.drain(ctx); err != nil {
		return err
	}
	t.mu.Lock()
	t.outOfUse = errors.New("offload: closed")
	t.mu.Unlock()
	return t.conn.Close()
}
