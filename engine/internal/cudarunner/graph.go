package cudarunner

import (
	"errors"
	"fmt"

	"github.com/enginetest/enginetest/cuda"
)

// graphKey is the shape of a decode step: all that its kernels have fixed.
type graphKey struct {
	tokens, splits, maxTable int
	sifted                   bool
}

// graph is a decode step of one shape. Its first run is launched kernel by kernel, so that shapes
// seen once cost no graph.
type graph struct {
	exec *cuda.GraphExec
}

// buckets are the sizes of decode steps: smaller ones have empty rows.
var buckets = [...]int{1, 2, 4, 8, 12, 16, 24, 32, 48, 64}

func bucket(n, most int) int {
	for _, b := range buckets {
		if n <= b && b <= most {
			return b
		}
	}
	return n
}

// graphs are the decode steps that were captured.
type graphs struct {
	*decoder
	drawer *drawer
	byKey  map[graphKey]*graph
	owned  bool
}

// decode queues a decode step, logits and draw included.
func (r *graphs) decode(s *step) error {
	key := graphKey{s.tokens, s.splits, s.maxTable, s.sifted}
	g := r.byKey[key]
	switch {
	case r.options.NoGraphs || g == nil:
		if g == nil {
			r.byKey[key] = &graph{}
		}
		return r.decodeKernels(s)
	case g.exec == nil:
		if err := r.capture(s, g); err != nil {
			return fmt.Errorf("graph of %d sequences: %w", s.tokens, err)
		}
	}
	return g.exec.Launch(r.stream)
}

func (r *graphs) decodeKernels(s *step) error {
	if err := r.forward(s); err != nil {
		return err
	}
	if err := r.project(s, s.tokens, 0); err != nil {
		return err
	}
	return r.drawer.draw(s, s.tokens)
}

// capture records a decode step.
func (r *graphs) capture(s *step, g *graph) error {
	if hook := r.options.Hooks.Allocate; hook != nil {
		if err := hook("cuda_graphs", 0); err != nil {
			return err
		}
	}
	recorded, err := r.stream.Capture("cuda_graphs", func() error { return r.decodeKernels(s) })
	if err != nil {
		return err
	}
	if g.exec, err = recorded.Instantiate("cuda_graphs"); err != nil {
		return errors.Join(err, recorded.Close())
	}
	if !r.owned {
		r.owned = true
		all := r.byKey
		r.own("cuda_graphs", 0, func() error { return dropGraphs(all) })
	}
	return recorded.Close() // what was instantiated from it stays
}

// dropGraphs destroys all graphs.
func dropGraphs(all map[graphKey]*graph) error {
	var errs []error
	for key, g := range all {
		if g.exec != nil {
			errs = append(errs, g.exec.Close())
		}
		delete(all, key)
	}
	return errors.Join(errs...)
}
