package forkproc

import "github.com/enginetest/enginetest/internal/proc"

type snapshot struct{}

func (c *child) snapshot() snapshot { return snapshot{} }

func (c *child) leftovers(_ snapshot, survivors []proc.Process, _ Status) (found []string) {
	for _, s := range survivors {
		found = append(found, s.String())
	}
	return found
}

