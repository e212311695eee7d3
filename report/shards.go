package report

import (
	"fmt"
	"strings"
)

// lostShards says which parts of a split run are missing or do not belong together; "" when all is
// there.
func (r *Report) lostShards() string {
	if len(r.Shards) == 0 {
		return ""
	}
	first := r.Shards[0]
	have := map[int]bool{}
	for _, s := range r.Shards {
		if s.Of != first.Of || s.Plan != first.Plan {
			return fmt.Sprintf("shards %s and %s were planned differently: tests may be lost; give all the same --history and packages", first, s)
		}
		have[s.Index] = true
	}
	var lost []string
	for i := 1; i <= first.Of; i++ {
		if !have[i] {
			lost = append(lost, fmt.Sprintf("%d/%d", i, first.Of))
		}
	}
	if lost == nil {
		return ""
	}
	return "missing: shard " + strings.Join(lost, ", ")
}
