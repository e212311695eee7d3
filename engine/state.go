package engine

import (
	"fmt"
	"slices"

	"github.com/enginetest/enginetest/llm"
)

// State is where an engine stands in its life:
//
//	Starting → Running ⇄ Sleeping
//	              Running, Sleeping → Draining → ShuttingDown → Stopped
//	any but Stopped → ShuttingDown            any but Stopped → Failed → ShuttingDown
type State int32

// The states.
const (
	Starting     State = iota // Open has not returned
	Running                   // takes work
	Sleeping                  // keeps its place, but has given device memory back
	Draining                  // takes no new work, finishes what runs
	ShuttingDown              // ends what runs and releases everything
	Stopped                   // holds nothing
	Failed                    // an error or a panic ended it; Shutdown still releases everything
)

var stateNames = [...]string{"starting", "running", "sleeping", "draining", "shutting down", "stopped", "failed"}

func (s State) String() string {
	if s < 0 || int(s) >= len(stateNames) {
		return fmt.Sprintf("State(%d)", int(s))
	}
	return stateNames[s]
}

// after lists the states that may follow each.
var after = [...][]State{
	Starting:     {Running, ShuttingDown, Failed},
	Running:      {Sleeping, Draining, ShuttingDown, Failed},
	Sleeping:     {Running, Draining, ShuttingDown, Failed},
	Draining:     {ShuttingDown, Failed},
	ShuttingDown: {Stopped},
	Stopped:      {},
	Failed:       {ShuttingDown},
}

// to moves to another state; false when that may not follow this one.
func (s *State) to(next State) bool {
	if !slices.Contains(after[*s], next) {
		return false
	}
	*s = next
	return true
}

// refusal is why a state takes no new work; nil when it does. cause is what the engine failed of.
func (s State) refusal(cause error) error {
	switch {
	case cause != nil:
		return dead(cause)
	case s == Running:
		return nil
	case s == Sleeping:
		return llm.ErrSleeping
	case s == Draining:
		return llm.ErrDraining
	case s == Stopped:
		return llm.ErrStopped
	}
	return fmt.Errorf("%w: it is %s", llm.ErrStopped, s)
}

// end is Engine.Err: nil while the engine lives. A cause is set together with Failed, so whoever
// sees Failed sees the error, too; done may come later.
func (s State) end(cause error, done <-chan struct{}) error {
	if cause == nil {
		select {
		case <-done:
		default:
			return nil
		}
	}
	return s.refusal(cause)
}
