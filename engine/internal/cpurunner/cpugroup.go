package cpurunner

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"

	"github.com/enginetest/enginetest/internal/checkpoint"
)

// NewGroup makes a runner of an open checkpoint for this many devices, which the CPU emulates: each
// has memory, a KV cache and threads of its own. Options are of all of them together where they are
// Threads, else of each; hooks gives those of a rank. The checkpoint is the runner's from then on;
// ranks after the first open it again. The error is a *[modelrunner.SplitError] when the model does
// not divide so, before any memory is taken.
func NewGroup(ckpt *checkpoint.Checkpoint, ranks int, o Options,
	hooks func(rank int) modelrunner.Hooks,
) (modelrunner.Runner, error) {
	_, err := modelrunner.Split(ckpt.Config, modelrunner.Shard{Size: ranks})
	if err != nil {
		return nil, errors.Join(err, ckpt.Close())
	}
	first, err := modelrunner.SourceOf(ckpt)
	if err != nil {
		return nil, errors.Join(err, ckpt.Close())
	}
	o.link = newLink(ranks)
	devices := make([]string, ranks)
	for i := range devices {
		devices[i] = fmt.Sprintf("cpu:%d", o.Index+i)
	}
	return modelrunner.NewGroup(devices, o.link, func(s modelrunner.Shard) (modelrunner.Rank, error) {
		own, o := ckpt, o
		if !s.First() {
			var err error
			if own, err = first.Reopen(); err != nil {
				return nil, err
			}
		}
		o.shard, o.Index, o.Hooks = s, o.Index+s.Rank, hooks(s.Rank)
		threads := orDefault(o.Threads, runtime.GOMAXPROCS(0))
		o.Threads = max(threads*(s.Rank+1)/s.Size-threads*s.Rank/s.Size, 1)
		r, err := New(own, o)
		if err != nil {
			return nil, err
		}
		return r, nil
	})
}
