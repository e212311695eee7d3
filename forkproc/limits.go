package forkproc

import (
	"fmt"
	"time"
)

// limits are counted from the start of the child. Each later one is a grace after the one before,
// so that the inner wait, which has more to say, ends first: the child's own alarm prints its
// stacks; a child that is too stuck for that gets SIGQUIT; one that is too stuck for that gets
// SIGKILL; and all is over one grace before the alarm of the parent.
type limits struct {
	child  time.Duration // 0: none, and none of the others
	quit   time.Duration
	kill   time.Duration
	giveUp time.Duration
	grace  time.Duration
}

const (
	// enough to read the output of a process that ends; as in the go command's own tests
	minGrace = 100 * time.Millisecond
	maxGrace = 5 * time.Second
)

// newLimits divides what is left until the deadline (zero: none) of the test. The grace is 5 % of
// it, from 100 ms to 5 s.
func newLimits(now, deadline time.Time, timeout, grace time.Duration) (limits, error) {
	l := limits{grace: maxGrace, child: timeout}
	if grace > 0 {
		l.grace = grace
	}
	if !deadline.IsZero() {
		left := deadline.Sub(now)
		if grace == 0 {
			l.grace = min(max(left/20, minGrace), maxGrace)
		}
		most := left - 4*l.grace
		if most <= 0 {
			return l, fmt.Errorf("only %v is left until the deadline of the test (go test -timeout); a child needs more than %v",
				left.Round(time.Millisecond), 4*l.grace)
		}
		if l.child == 0 || most < l.child {
			l.child = most
		}
	}
	if l.child > 0 {
		l.quit = l.child + l.grace
		l.kill = l.quit + l.grace
		l.giveUp = l.kill + l.grace
	}
	return l, nil
}

// after is time.After that never comes for zero.
func after(d time.Duration) <-chan time.Time {
	if d == 0 {
		return nil
	}
	return time.After(d)
}
