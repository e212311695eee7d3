package cpurunner

import (
	"github.com/enginetest/enginetest/engine/internal/cpu"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
)

// draftPrefix is before the owners of a draft model.
const draftPrefix = "draft_"

// owner is what the ledger has a part under.
func (r *Runner) owner(part string) string {
	if r.options.DraftOf != nil {
		return draftPrefix + part
	}
	return part
}

// threadsOf returns the threads of a runner's rank. Two sets of threads that wait by spinning would
// take the processors from each other.
func threadsOf(r modelrunner.Runner, rank int) *cpu.Pool {
	if g, ok := r.(interface{ Ranks() []modelrunner.Rank }); ok {
		r = g.Ranks()[rank]
	}
	return r.(*Runner).pool
}
