package modelrunner

import (
	"errors"
	"fmt"
	"slices"

	"github.com/enginetest/enginetest/ledger"
)

// Part is something that a runner holds and releases.
type Part struct {
	Owner   string
	Bytes   int64
	Release func() error
	Stays   int // the deepest sleep that leaves it: 0 none, 1 the one that keeps the weights on the host, 2 any

	stale bool // would not go
}

// Parts is what a runner holds, in the order it was acquired.
type Parts struct {
	Package string // of the runner, for errors
	Hooks   *Hooks
	list    []Part
}

// Add enters a part to be released.
func (ps *Parts) Add(p Part) { ps.list = append(ps.list, p) }

// Len is how many there are.
func (ps *Parts) Len() int { return len(ps.list) }

// Release releases all that which picks (nil: all), the last acquired first, whatever fails. What
// would not go stays, and is in the error.
func (ps *Parts) Release(which func(Part) bool) error {
	var errs []error
	var left []Part
	for _, p := range slices.Backward(ps.list) {
		if which == nil || which(p) {
			err := ps.release(p)
			if err == nil {
				continue
			}
			errs = append(errs, fmt.Errorf("%s: releasing %s (%s): %w", ps.Package, p.Owner,
				ledger.FormatBytes(p.Bytes), err))
			p.stale = true
		}
		left = append(left, p)
	}
	slices.Reverse(left)
	ps.list = left
	return errors.Join(errs...)
}

// Retry releases what would not go.
func (ps *Parts) Retry() error { return ps.Release(func(p Part) bool { return p.stale }) }

// Keep says that parts which would not go are wanted again.
func (ps *Parts) Keep(which func(Part) bool) {
	for i := range ps.list {
		if which(ps.list[i]) {
			ps.list[i].stale = false
		}
	}
}

// ReleaseFrom releases the parts after the first n.
func (ps *Parts) ReleaseFrom(n int) error {
	later := Parts{Package: ps.Package, Hooks: ps.Hooks, list: ps.list[n:]}
	err := later.Release(nil)
	ps.list = append(ps.list[:n:n], later.list...)
	return err
}

// release releases one part. A panic is an error here: the parts that come after must go too.
func (ps *Parts) release(p Part) (err error) {
	defer func() {
		v := recover()
		if cause, ok := v.(error); ok {
			err = fmt.Errorf("panic: %w", cause)
		} else if v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	if hook := ps.Hooks.Release; hook != nil {
		if err := hook(p.Owner, p.Bytes); err != nil {
			return err
		}
	}
	return p.Release()
}
