// Package backoff spaces the looks at something that changes by itself.
package backoff

import (
	"context"
	"time"
)

// Backoff is a pause that doubles each time, up to a longest one.
type Backoff struct{ next, most time.Duration }

// New returns a Backoff that begins with the first pause.
func New(first, most time.Duration) *Backoff { return &Backoff{first, most} }

// Next returns the pause that is due now, for a select with other events.
func (b *Backoff) Next() time.Duration {
	d := b.next
	b.next = min(2*b.next, b.most)
	return d
}

// Shorten makes the next pause at most d: something has happened.
func (b *Backoff) Shorten(d time.Duration) { b.next = min(b.next, d) }

// Wait pauses. It returns the context's cause when that ends first.
func (b *Backoff) Wait(ctx context.Context) error { return b.WaitAtMost(ctx, b.most) }

// WaitAtMost is Wait with a bound of its own, for a caller whose patience ends.
func (b *Backoff) WaitAtMost(ctx context.Context, most time.Duration) error {
	timer := time.NewTimer(min(b.Next(), max(most, 0)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
