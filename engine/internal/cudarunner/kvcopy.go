package cudarunner

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/enginetest/enginetest/cuda"
)

// slots is how many copies can be under way at once.
const slots = 8

// copier copies KV blocks beside the steps: in the runner's context, on a thread and a stream of
// its own, through page-locked host memory. These are made for the first block, and go with Sleep
// and Close. Copies that come together cross the link together: one hop and one wait for all of
// them. Steps and copies need no order on the device: [Runner.Execute] returns when its step is
// done there, and a copy when it is.
type copier struct {
	life    sync.RWMutex // a copy reads; what changes the following writes
	kv      *cuda.Memory // nil: none
	blocks  int
	worker  *cuda.Worker // nil: not made
	stream  *cuda.Stream
	staging *cuda.Pinned
	free    chan int // slots of the staging memory

	mu     sync.Mutex
	queued []*kvCopy
}

// kvCopy is a block on its way between the device and a slot.
type kvCopy struct {
	rows   cuda.Rows
	at     int64 // in the staging memory
	toHost bool
	err    error
}

// errLost is what a copy says until it is done: what flushed it may have panicked.
var errLost = errors.New("cudarunner: the copy of a KV block was not done")

// setKV makes a KV cache the runner's, of steps and copies.
func (r *Runner) setKV(m *cuda.Memory, blocks int) {
	r.copies.life.Lock() // copies that are under way end first
	defer r.copies.life.Unlock()
	r.kv, r.blocks = m, blocks
	r.copies.kv, r.copies.blocks = m, blocks
}

// ReadKV implements [modelrunner.KVCopier]. A block's bytes are its part of K and its part of V,
// layer after layer.
func (r *Runner) ReadKV(block int32, dst []byte) error { return r.copyKV(block, dst, true) }

// WriteKV implements [modelrunner.KVCopier].
func (r *Runner) WriteKV(block int32, src []byte) error { return r.copyKV(block, src, false) }

func (r *Runner) copyKV(block int32, host []byte, toHost bool) error {
	c := &r.copies
	if err := c.ready(r); err != nil {
		return err
	}
	c.life.RLock()
	defer c.life.RUnlock()
	n := r.KVBytesPerBlock()
	if uint(block) >= uint(c.blocks) || int64(len(host)) != n {
		return fmt.Errorf("cudarunner: copy of KV block %d to or from %d bytes: the KV cache has %d blocks of %d bytes",
			block, len(host), c.blocks, n)
	}
	if c.worker == nil {
		return errors.New("cudarunner: copy of a KV block while the runner falls asleep")
	}
	slot := <-c.free
	defer func() { c.free <- slot }()
	pieces := 2 * r.NumLayers
	width := n / int64(pieces)
	x := &kvCopy{
		rows: cuda.Rows{Off: int64(block) * width, Pitch: c.kv.Size() / int64(pieces), Width: width, N: pieces},
		at:   int64(slot) * n, toHost: toHost, err: errLost,
	}
	staged := c.staging.Bytes()[x.at:][:n]
	if !toHost {
		copy(staged, host)
	}
	c.mu.Lock()
	c.queued = append(c.queued, x)
	c.mu.Unlock()
	if err := c.worker.Do(c.flush); err != nil {
		return err
	}
	if x.err == nil && toHost {
		copy(host, staged)
	}
	return x.err
}

// flush does all copies that are queued, on the copier's thread: who comes first does those of the
// others, too.
func (c *copier) flush() error {
	c.mu.Lock()
	all := c.queued
	c.queued = nil
	c.mu.Unlock()
	for _, x := range all {
		if x.toHost {
			x.err = c.stream.CopyRowsToHost(c.staging, x.at, c.kv, x.rows)
		} else {
			x.err = c.stream.CopyRowsToDevice(c.kv, x.rows, c.staging, x.at)
		}
	}
	if len(all) == 0 {
		return nil
	}
	if err := c.stream.Synchronize(); err != nil {
		for _, x := range all {
			x.err = errors.Join(x.err, err)
		}
	}
	return nil
}

// ready makes the copier when there is a KV cache to copy from.
func (c *copier) ready(r *Runner) error {
	c.life.RLock()
	made := c.worker != nil || c.kv == nil
	c.life.RUnlock()
	if made {
		return nil
	}
	c.life.Lock()
	defer c.life.Unlock()
	if c.worker != nil || c.kv == nil {
		return nil
	}
	return c.open(r)
}

// open makes what copies need.
func (c *copier) open(r *Runner) (err error) {
	n := slots * r.KVBytesPerBlock()
	if hook := r.options.Hooks.Allocate; hook != nil {
		if err := hook("staging", n); err != nil {
			return err
		}
	}
	c.worker, err = cuda.NewWorker(r.options.Device, cuda.Config{
		Name:   r.worker.Name() + " copies",
		Ledger: r.options.Ledger, Stacks: r.options.Stacks,
	})
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
	c.free = make(chan int, slots)
	for i := range slots {
		c.free <- i
	}
	return nil
}

// close releases what open made.
func (c *copier) close() error {
	c.life.Lock()
	defer c.life.Unlock()
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
