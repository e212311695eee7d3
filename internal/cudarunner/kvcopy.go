package cudarunner

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/enginetest/enginetest/cuda"
)

// copier copies KV blocks beside the steps: in the runner's context, on a thread and a stream of its own, through page-locked host memory. These are
// made for the first block, and go with Sleep and Close. Steps and copies need no order on the device: [Runner.Execute] returns when its step is
// done there, and a copy when it is.
type copier struct {
	mu      sync.Mutex
	kv      *cuda.Memory // nil: none
	blocks  int
	worker  *cuda.Worker // nil: not made
	stream  *cuda.Stream
	staging *cuda.Pinned
}

// setKV makes a KV cache the runner's, of steps and copies.
func (r *Runner) setKV(m *cuda.Memory, blocks int) {
	r.copies.mu.Lock() // a copy that is under way ends first
	defer r.copies.mu.Unlock()
	r.kv, r.blocks = m, blocks
	r.copies.kv, r.copies.blocks = m, blocks
}

// ReadKV implements [modelrunner.KVCopier]. A block's bytes are its part of K and its part of V, layer after layer.
func (r *Runner) ReadKV(block int32, dst []byte) error {
	return r.copyKV(block, dst, func(c *copier, rows cuda.Rows) error {
		err := c.worker.Do(func() error {
			return errors.Join(c.stream.CopyRowsToHost(c.staging, 0, c.kv, rows), c.stream.Synchronize())
		})
		if err == nil {
			copy(dst, c.staging.Bytes())
		}
		return err
	})
}

// WriteKV implements [modelrunner.KVCopier].
func (r *Runner) WriteKV(block int32, src []byte) error {
	return r.copyKV(block, src, func(c *copier, rows cuda.Rows) error {
		copy(c.staging.Bytes(), src)
		return c.worker.Do(func() error {
			return errors.Join(c.stream.CopyRowsToDevice(c.kv, rows, c.staging, 0), c.stream.Synchronize())
		})
	})
}

func (r *Runner) copyKV(block int32, host []byte, move func(c *copier, rows cuda.Rows) error) error {
	c := &r.copies
	c.mu.Lock()
	defer c.mu.Unlock()
	n := r.KVBytesPerBlock()
	if uint(block) >= uint(c.blocks) || int64(len(host)) != n {
		return fmt.Errorf("cudarunner: copy of KV block %d to or from %d bytes: the KV cache has %d blocks of %d bytes", block, len(host), c.blocks, n)
	}
	if c.worker == nil {
		if err := c.open(r); err != nil {
			return err
		}
	}
	pieces := 2 * r.NumLayers
	width := n / int64(pieces)
	return move(c, cuda.Rows{Off: int64(block) * width, Pitch: c.kv.Size() / int64(pieces), Width: width, N: pieces})
}

// open makes what copies need.
func (c *copier) open(r *Runner) (err error) {
	n := r.KVBytesPerBlock()
	if hook := r.options.Hooks.Allocate; hook != nil {
		if err := hook("staging", n); err != nil {
			return err
		}
	}
	c.worker, err = cuda.NewWorker(r.options.Device, cuda.Config{Name: r.worker.Name() + " copies", Ledger: r.options.Ledger, Stacks: r.options.Stacks})
	if err != nil {
		return err
	}
	err = c.worker.Do(func() (err error) {
		if c.stream, err = c.worker.NewStream("streams"); err != nil {
			return err
		}
		c.staging, err = c.worker.AllocPinned("staging", n)
		return err
	})
	if err != nil {
		return errors.Join(err, c.end())
	}
	return nil
}

// close gives back what open made.
func (c *copier) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end()
}

func (c *copier) end() error {
	if c.worker == nil {
		return nil
	}
	err := c.worker.Do(func() error {
		var errs []error
		if c.staging != nil {
			errs = append(errs, c.staging.Free())
		}
		if c.stream != nil {
			errs = append(errs, c.stream.Close())
		}
		return errors.Join(errs...)
	})
	if c.worker.Err() != nil { // the runner says what its context died of
		err = nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err = errors.Join(err, c.worker.Close(ctx))
	c.worker, c.stream, c.staging = nil, nil, nil
	return err
}
