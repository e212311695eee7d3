// Package cudarunner executes engine steps on a CUDA device: the weights, the KV cache and the
// sampler of one GPU.
//
// It computes what the CPU runner of engine/internal/modelrunner computes, in the same order.
// Decode steps of up to 64 sequences are CUDA graphs, one a size; everything else is launched
// kernel by kernel. One step is one hop to the device's thread, and none from that thread itself
// (OnThread).
//
// Precision. The residual stream, norms, attention and sampling are float32. Float32 checkpoints
// are multiplied in float32 (no tf32). For 16-bit checkpoints one sequence alone is multiplied with
// float32 activations; tensor cores take activations of the weights' type: as the sum of two where
// that costs nothing (models below 512 MiB, steps of at most 16 rows), rounded elsewhere. Their KV
// cache is float16, or float32 for models below 512 MiB.
package cudarunner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/ledger"
)

// Options say where a [Runner] runs and how much it makes room for.
type Options struct {
	Device              cuda.Device
	BlockSize           int            // tokens in a KV block; 0 is 16
	MaxModelLen         int            // positions; 0 is the checkpoint's max_position_embeddings
	MaxNumBatchedTokens int            // tokens in a step; 0 is 2048
	Ledger              *ledger.Ledger // nil is a new one, without stacks
	Stacks              bool
	Hooks               modelrunner.Hooks
	AllReduce           AllReduce     // of a group
	Patience            time.Duration // for another rank of a group in an all-reduce; 0 is a minute
	Fast                bool          // compute small models as large ones are: rounded activations, a float16 KV cache
	NoGraphs            bool          // launch every kernel of a decode step by itself
	HostSampling        bool          // sample on the host what is not greedy or from all, for measurements
	linked              func(*link)   // for tests
	PTX                 bool          // let the driver compile the kernels, also where there is machine code
}

// Runner is a [modelrunner.Runner] on a CUDA device: what makes a decoder's memory, lets go of it,
// and turns a batch into steps.
type Runner struct {
	*decoder
	feed   *feed
	drawer *drawer
	graphs *graphs
	pooler *pooler // nil: the model has an output layer, or this is not the first rank
	blocks int     // of the KV cache
	copies copier
}

// device is a rank's place on a GPU: a thread with its context, a stream, kernels, and all that is
// held there.
type device struct {
	options Options
	worker  *cuda.Worker
	stream  *cuda.Stream
	kernels *kernelSet
	parts   modelrunner.Parts
}

// newRunner puts a runner together, without anything on the device.
func newRunner(o Options, share modelrunner.Share, l *link) *Runner {
	p := &products{weightStore: &weightStore{device: &device{options: o}, share: share}}
	p.parts = modelrunner.Parts{Package: "cudarunner", Hooks: &p.options.Hooks}
	d := &decoder{attention: &attention{products: p}, group: &reducer{products: p, link: l}}
	w := &drawer{products: p}
	g := &graphs{decoder: d, drawer: w}
	r := &Runner{decoder: d, drawer: w, graphs: g, feed: &feed{drawer: w, graphs: g}}
	r.forget()
	return r
}

var (
	_ modelrunner.Runner       = (*Runner)(nil)
	_ modelrunner.SleepingRank = (*Runner)(nil)
	_ modelrunner.Threaded     = (*Runner)(nil)
)

// Owners in the ledger that more than one place names.
const (
	weights      = "weights"
	kvCache      = "kv_cache"
	kernelsOwner = "kernels"
)

// closeTimeout bounds the end of the device's thread.
const closeTimeout = 30 * time.Second

// New makes a runner of an open checkpoint, which it closes: when the weights are on the device, or
// when New fails. Every tensor of the architecture is found and checked (*checkpoint.Error) before
// the device is touched.
//
// In the ledger: the context, kernels, streams, weights, rope, workspace, staging (pinned host
// memory for inputs and results), pooling (the same) for a model that pools; kv_cache after AllocateKV; cuda_graphs after the first decode
// steps.
func New(ckpt *checkpoint.Checkpoint, o Options) (r *Runner, err error) {
	defer func() { // after a panic too
		if err = errors.Join(err, ckpt.Close()); err != nil && r != nil {
			err = errors.Join(err, r.Close())
			r = nil
		}
	}()
	return open(ckpt, modelrunner.Shard{}, nil, o)
}

// open makes the runner of a rank; link is nil for one that is alone.
func open(ckpt *checkpoint.Checkpoint, shard modelrunner.Shard, l *link, o Options) (_ *Runner, err error) {
	share, err := modelrunner.Split(ckpt.Config, shard)
	if err != nil {
		return nil, err
	}
	o.BlockSize = cmp.Or(max(o.BlockSize, 0), 16)
	o.MaxModelLen = cmp.Or(max(o.MaxModelLen, 0), ckpt.Config.MaxPositions)
	o.MaxNumBatchedTokens = cmp.Or(max(o.MaxNumBatchedTokens, 0), 2048)
	if o.Ledger == nil {
		o.Ledger = ledger.New(o.Stacks)
	}
	r := newRunner(o, share, l)
	opened := false
	defer func() { // after a panic too
		if !opened {
			err = errors.Join(err, r.Close())
		}
	}()
	if err := call(o.Hooks.Load); err != nil {
		return nil, err
	}
	if r.source, err = modelrunner.SourceOf(ckpt); err != nil {
		return nil, err
	}
	var b *binder
	if r.model, b, err = bind(ckpt, share, o.Fast); err != nil {
		return nil, err
	}
	if r.worker, err = cuda.NewWorker(o.Device, cuda.Config{Ledger: o.Ledger, Stacks: o.Stacks}); err != nil {
		return nil, err
	}
	if err := r.worker.Do(func() error { return r.takeMemory(b) }); err != nil {
		return nil, err
	}
	r.drawer.samplers = make(chan *sample.Sampler, samplerCount)
	for range samplerCount {
		r.drawer.samplers <- &sample.Sampler{}
	}
	opened = true
	return r, nil
}

func call(hook func() error) error {
	if hook == nil {
		return nil
	}
	return hook()
}

// takeMemory makes everything but the KV cache, on the device's thread.
func (r *Runner) takeMemory(b *binder) error {
	var err error
	if r.stream, err = r.worker.NewStream("streams"); err != nil {
		return err
	}
	r.parts.Add(modelrunner.Part{Owner: "streams", Release: r.stream.Close, Stays: 2})
	if r.kernels, err = loadKernels(r.worker, r.options.PTX); err != nil {
		return err
	}
	if l := r.group.link; l != nil && l.shared { // blocks that only wait for their turn would keep the other rank's out
		r.kernels.dependent = false
	}
	r.parts.Add(modelrunner.Part{Owner: kernelsOwner, Release: r.kernels.close, Stays: 2})
	if r.needsVariants() {
		if err := r.kernels.loadVariants(r.worker); err != nil {
			return err
		}
	}
	return r.takeModel(b.bytes, func() error { return r.load(b) })
}

// takeModel takes what a sleep releases, but the KV cache. fill fills the weights, which have so
// many bytes, unless they are there.
func (r *Runner) takeModel(bytes int64, fill func() error) (err error) {
	if r.weights == nil {
		if r.weights, err = r.alloc(weights, bytes); err != nil {
			return err
		}
		start := time.Now()
		if err := fill(); err != nil {
			return err
		}
		r.took = time.Since(start)
	}
	for _, rope := range r.Ropes() {
		t := newRopeTable(rope, r.HeadDim, r.options.MaxModelLen)
		if t.memory, err = r.alloc("rope", t.bytes()); err != nil {
			return err
		}
		r.ropes = append(r.ropes, t)
	}
	r.work.plan(r.attention)
	if r.work.memory, err = r.alloc("workspace", r.work.bytes); err != nil {
		return err
	}
	if err := r.work.memory.Fill(0, r.work.bytes, 0, r.stream); err != nil { // paddings stay zero
		return err
	}
	if err := r.drawer.in.make(r.device, 1<<16); err != nil {
		return err
	}
	if r.group.link != nil {
		if err := r.group.makeMailbox(); err != nil {
			return err
		}
	}
	if err := r.makePooler(); err != nil {
		return err
	}
	return r.stream.Synchronize()
}

// own enters something to be released by Close.
func (r *device) own(owner string, bytes int64, release func() error) {
	r.parts.Add(modelrunner.Part{Owner: owner, Bytes: bytes, Release: release})
}

// alloc takes device memory for an owner until Close.
func (r *device) alloc(owner string, bytes int64) (*cuda.Memory, error) {
	if hook := r.options.Hooks.Allocate; hook != nil {
		if err := hook(owner, bytes); err != nil {
			return nil, err
		}
	}
	m, err := r.worker.Alloc(owner, bytes)
	if err != nil {
		return nil, err
	}
	r.own(owner, bytes, m.Free)
	return m, nil
}

// KVBytesPerBlock implements [modelrunner.Runner].
func (r *Runner) KVBytesPerBlock() int64 {
	return 2 * int64(r.NumLayers) * int64(r.options.BlockSize) * int64(r.NumKVHeads) * int64(r.headPad) * r.kvSize()
}

// kvSize is the size of an element of the KV cache.
func (r *Runner) kvSize() int64 {
	if r.kvF32 {
		return 4
	}
	return 2
}

// FreeMemory implements [modelrunner.Runner]. A little is left for graphs and for what the driver
// takes by itself.
func (r *Runner) FreeMemory() (free, total int64, err error) {
	err = r.worker.Do(func() error {
		free, total, err = r.worker.MemInfo()
		return err
	})
	const reserve = 128 << 20
	return max(free-reserve, 0), total, err
}

// OnThread implements [modelrunner.Threaded].
func (r *Runner) OnThread(f func() error) error { return r.worker.Do(f) }

// AllocateKV implements [modelrunner.Runner].
func (r *Runner) AllocateKV(blocks int) error {
	if r.kv != nil {
		return fmt.Errorf("cudarunner: AllocateKV(%d): the runner has its %d KV blocks already", blocks, r.blocks)
	}
	if perBlock := r.KVBytesPerBlock(); blocks <= 0 || int64(blocks) > math.MaxInt32/int64(r.options.BlockSize) ||
		int64(blocks) > math.MaxInt/perBlock {
		return fmt.Errorf("cudarunner: AllocateKV(%d): want a number of blocks above 0 whose slots fit in an int32",
			blocks)
	}
	return r.worker.Do(func() error {
		if err := r.parts.Retry(); err != nil {
			return err
		}
		m, err := r.alloc(kvCache, int64(blocks)*r.KVBytesPerBlock())
		if err != nil {
			return err
		}
		r.setKV(m, blocks)
		return nil
	})
}

// Device is the device's name in the ledger.
func (r *Runner) Device() string { return r.options.Device.UUID }

// Holdings implements [modelrunner.Runner]. Other devices may share the ledger.
func (r *Runner) Holdings() []ledger.Holding {
	return slices.DeleteFunc(r.options.Ledger.Holdings(), func(h ledger.Holding) bool {
		return h.Device != r.options.Device.UUID
	})
}

// Close implements [modelrunner.Runner]: it releases every part, the last acquired first, whatever
// fails, and then the context, which frees what would not go.
func (r *Runner) Close() error {
	if r.worker == nil {
		return nil
	}
	err := r.copies.close()
	r.setKV(nil, 0)
	released := r.worker.Do(func() error { return r.parts.Release(nil) })
	if errors.Is(released, cuda.ErrClosed) {
		return err
	}
	err = errors.Join(err, released)
	if r.parts.Len() > 0 && r.worker.Err() == nil { // kept by a hook: another Close tries again
		return err
	}
	r.graphs.byKey, r.pooler = nil, nil
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return errors.Join(err, r.worker.Close(ctx))
}
