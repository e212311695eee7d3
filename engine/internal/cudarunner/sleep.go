package cudarunner

import (
	"errors"
	"fmt"
	"sync"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/engine/internal/cpu"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
)

// Sleep implements [modelrunner.Sleeper]. The context, the stream and the kernels stay: the ledger
// does not count their bytes. Kept weights are copied, packed as they are, to page-locked host
// memory: a wake needs no file then, and copies at the link's speed. When the host has no room for
// them they stay on the device, and the error says so.
func (r *Runner) Sleep(keep bool) error {
	return r.giveBack(keep, func(modelrunner.Part) bool { return true })
}

// FreeWeights releases what WakeWeights takes: it is Sleep, but the KV cache stays.
func (r *Runner) FreeWeights(keep bool) error {
	return r.giveBack(keep, func(p modelrunner.Part) bool { return p.Owner != kvCache })
}

// FreeKV undoes AllocateKV.
func (r *Runner) FreeKV() error {
	r.setKV(nil, 0)
	return r.worker.Do(func() error {
		return r.parts.Release(func(p modelrunner.Part) bool { return p.Owner == kvCache })
	})
}

// giveBack releases the parts that which picks, as deep as a sleep goes.
func (r *Runner) giveBack(keep bool, which func(modelrunner.Part) bool) error {
	depth := 2
	if keep {
		depth = 1
	}
	stopped := r.copies.close() // it is made again when it is needed
	if which(modelrunner.Part{Owner: kvCache}) {
		r.setKV(nil, 0)
	}
	err := r.worker.Do(func() error {
		var unsaved error
		if keep {
			unsaved = r.save()
		}
		err := r.parts.Release(func(p modelrunner.Part) bool {
			return p.Stays < depth && which(p) && (unsaved == nil || p.Owner != weights)
		})
		if r.forget(); unsaved == nil {
			r.weights = nil
		}
		return errors.Join(unsaved, err)
	})
	return errors.Join(stopped, err)
}

// forget leaves no way into memory that is gone: all that WakeWeights makes but the weights.
func (r *Runner) forget() {
	r.ropes, r.work, r.group.mailbox = nil, workspace{}, nil
	r.drawer.in, r.drawer.logits = &staging{}, nil
	r.graphs.byKey, r.graphs.owned = map[graphKey]*graph{}, false
	r.pooler = nil
}

// save copies the weights to the host, unless they are there. Large pages that are mapped and then
// locked are had and given back in half the time of the driver's own page-locked memory.
func (r *weightStore) save() error {
	if r.weights == nil || r.saved != nil {
		return nil
	}
	n := r.weights.Size()
	host, locked, err := r.lockedMemory(n)
	if err != nil {
		return fmt.Errorf("cudarunner: the weights stay on the device: %w", err)
	}
	free := func() error {
		if locked != nil {
			if err := locked.Free(); err != nil {
				return err
			}
			locked = nil
		}
		return host.Free()
	}
	if err := errors.Join(r.weights.CopyToAsync(locked, 0, 0, n, r.stream), r.stream.Synchronize()); err != nil {
		undone := free()
		if undone != nil {
			r.own(weights, n, free)
		}
		return fmt.Errorf("cudarunner: the weights stay on the device: %w", errors.Join(err, undone))
	}
	r.saved = locked
	r.parts.Add(modelrunner.Part{Owner: weights, Bytes: n, Stays: 1, Release: func() error {
		err := free()
		if err == nil {
			r.saved = nil
		}
		return err
	}})
	return nil
}

// lockedMemory maps host memory and locks it. The system promises more than it has, so it is asked
// before.
func (r *device) lockedMemory(n int64) (*cpu.Buffer, *cuda.Pinned, error) {
	alloc := cpu.NewAllocator(cpu.AllocatorConfig{Device: cuda.HostDevice, Ledger: r.options.Ledger})
	if free, total, err := alloc.Memory(); err == nil && n > free {
		return nil, nil, &cpu.OutOfMemory{Owner: weights, Bytes: n, Free: free, Total: total}
	}
	host, err := alloc.Alloc(weights, n)
	if err != nil {
		return nil, nil, err
	}
	host.PreferHugePages()
	locked, err := r.worker.Register(weights, host.Bytes())
	if err != nil {
		return nil, nil, errors.Join(err, host.Free())
	}
	return host, locked, nil
}

// WakeWeights implements [modelrunner.Sleeper]. Graphs are captured again, when a shape comes for
// the second time.
func (r *Runner) WakeWeights() (err error) {
	if r.work.memory != nil {
		return nil
	}
	if err := r.worker.Do(r.parts.Retry); err != nil {
		return err
	}
	fill, bytes := r.restore, int64(0)
	if r.saved != nil {
		bytes = int64(len(r.saved.Bytes()))
	} else if r.weights == nil {
		ckpt, err := r.source.Reopen()
		if err != nil {
			return err
		}
		closing := sync.OnceValue(ckpt.Close)
		defer func() { _ = closing() }() // fill has told its error
		_, b, err := bind(ckpt, r.share, r.options.Fast)
		if err != nil {
			return err
		}
		bytes, fill = b.bytes, func() error { return errors.Join(r.load(b), closing()) }
	}
	if err := call(r.options.Hooks.Load); err != nil {
		return err
	}
	return r.worker.Do(func() error { return r.wake(bytes, fill) })
}

// onHost picks what a sleep keeps on the host.
func onHost(p modelrunner.Part) bool { return p.Stays == 1 }

// restore copies saved weights back.
func (r *weightStore) restore() error {
	return errors.Join(r.weights.CopyFromAsync(0, r.saved, 0, r.weights.Size(), r.stream), r.stream.Synchronize())
}

// wake takes all that WakeWeights takes, or nothing, on the device's thread.
func (r *Runner) wake(bytes int64, fill func() error) (err error) {
	had, there := r.parts.Len(), r.weights != nil
	woken := false
	defer func() { // after a panic too
		if woken {
			return
		}
		if r.forget(); !there {
			r.weights = nil
		}
		err = errors.Join(err, r.parts.ReleaseFrom(had))
		r.parts.Keep(onHost) // when it would not go
	}()
	if err := r.takeModel(bytes, fill); err != nil {
		return err
	}
	if err := r.parts.Release(onHost); err != nil {
		return err
	}
	woken = true
	return nil
}
