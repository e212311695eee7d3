package cpurunner

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"

	"github.com/enginetest/enginetest/engine/internal/cpu"
	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/ledger"
)

// Options say how much a [CPU] runner makes room for.
type Options struct {
	Index               int            // of the device: "cpu:Index"; of the first one in a Group
	Threads             int            // 0 is GOMAXPROCS
	BlockSize           int            // tokens in a KV block; 0 is 16
	MaxModelLen         int            // positions; 0 is the checkpoint's max_position_embeddings
	MaxNumBatchedTokens int            // tokens in a step; 0 is 2048
	Ledger              *ledger.Ledger // nil is a new one, without stacks
	// bytes of device memory; 0 is the machine's, of which each rank of a Group has its share
	Capacity int64
	Hooks    modelrunner.Hooks
	// DraftOf is the open runner whose model this one drafts for, on the same devices: that one's
	// threads compute, and owners are "draft_weights", "draft_kv_cache" and so on
	DraftOf modelrunner.Runner

	shard modelrunner.Shard
	link  *link // with the other ranks; nil when there are none
}

// Runner is the runner of the CPU device: activations and KV cache are float32, weights stay as
// they are in the checkpoint's files.
type Runner struct {
	*model
	share   modelrunner.Share
	options Options
	alloc   *cpu.Allocator
	pool    *cpu.Pool
	parts   modelrunner.Parts
	files   *files // the checkpoint; nil while it is closed
	source  modelrunner.Source

	ropes    []ropeTable // one per checkpoint.Config.Ropes
	work     workspace
	pooler   *pooler       // nil: the model has an output layer
	kv       []cpu.KVCache // one a layer
	blocks   int
	samplers chan *sample.Sampler         // one a thread
	trace    func(layer int, x []float32) // for tests: the hidden states as they enter each layer
}

var (
	_ modelrunner.Runner       = (*Runner)(nil)
	_ modelrunner.SleepingRank = (*Runner)(nil)
)

// New makes a runner of an open checkpoint, which is the runner's from then on: it is closed with
// it, and when New fails. Every tensor of the architecture is found and checked (*checkpoint.Error)
// before any memory is taken.
//
// In the ledger: weights (the mapped files, and norms and biases widened to float32), rope,
// workspace, pooling for a model that pools; kv_cache after AllocateKV.
func New(ckpt *checkpoint.Checkpoint, o Options) (_ *Runner, err error) {
	share, err := modelrunner.Split(ckpt.Config, o.shard)
	if err != nil {
		return nil, errors.Join(err, ckpt.Close())
	}
	o.BlockSize = orDefault(o.BlockSize, 16)
	o.MaxModelLen = orDefault(o.MaxModelLen, ckpt.Config.MaxPositions)
	o.MaxNumBatchedTokens = orDefault(o.MaxNumBatchedTokens, 2048)
	r := &Runner{share: share, options: o, alloc: cpu.NewAllocator(cpu.AllocatorConfig{
		Index: o.Index, Ledger: o.Ledger, Capacity: o.Capacity, Before: o.Hooks.Allocate,
	})}
	r.parts = modelrunner.Parts{Package: "cpurunner", Hooks: &r.options.Hooks}
	if o.DraftOf != nil {
		r.pool = threadsOf(o.DraftOf, share.Rank)
	}
	opened := false
	defer func() { // after a panic too
		if !opened {
			err = errors.Join(err, r.Close())
		}
	}()
	if err := r.open(ckpt); err != nil {
		return nil, err
	}
	opened = true
	return r, nil
}

func (r *Runner) open(ckpt *checkpoint.Checkpoint) error {
	r.adopt(ckpt)
	var err error
	if r.source, err = modelrunner.SourceOf(ckpt); err != nil {
		return err
	}
	if err := r.load(); err != nil {
		return err
	}
	r.samplers = make(chan *sample.Sampler, r.pool.Threads())
	for range r.pool.Threads() {
		r.samplers <- &sample.Sampler{}
	}
	return nil
}

// load binds the weights of the open checkpoint, and allocates everything but the KV cache.
func (r *Runner) load() error {
	if err := modelrunner.Call(r.options.Hooks.Load); err != nil {
		return err
	}
	m, b := bind(r.files.ckpt, r.share)
	if b.err != nil {
		return b.err
	}
	r.model, r.files.others = m, b.others
	r.files.enter(r.alloc.Ledger(), r.alloc.Device())
	if r.pool == nil {
		var err error
		if r.pool, err = cpu.NewPool(r.options.Threads); err != nil {
			return err
		}
	}
	return r.takeMemory(b.vectors)
}

func orDefault(n, def int) int {
	if n <= 0 {
		return def
	}
	return n
}

// floats takes this many float32 for an owner until Close.
func (r *Runner) floats(owner string, n int) ([]float32, error) {
	owner = r.owner(owner)
	b, err := r.alloc.Alloc(owner, 4*int64(n))
	if err != nil {
		return nil, err
	}
	r.parts.Add(modelrunner.Part{Owner: owner, Bytes: 4 * int64(n), Release: b.Free})
	return b.Float32s(), nil
}

// takeMemory allocates everything but the KV cache. Pages that no step touches cost nothing.
func (r *Runner) takeMemory(vectors []vector) error {
	n := 0
	for _, v := range vectors {
		n += v.src.Shape[0]
	}
	memory, err := r.floats("weights", n)
	if err != nil {
		return err
	}
	widen(r.pool, memory, vectors)
	if err := r.makeRopes(); err != nil {
		return err
	}
	r.work = workspace{share: &r.share, tokens: r.options.MaxNumBatchedTokens}
	if memory, err = r.floats("workspace", r.work.size()); err != nil {
		return err
	}
	r.work.place(memory)
	return r.makePooler()
}

// KVBytesPerBlock implements [modelrunner.Runner].
func (r *Runner) KVBytesPerBlock() int64 {
	return 4 * 2 * int64(r.NumLayers) * int64(r.options.BlockSize) * int64(r.NumKVHeads) * int64(r.HeadDim)
}

// Device implements [modelrunner.Rank].
func (r *Runner) Device() string { return r.alloc.Device() }

// FreeMemory implements [modelrunner.Runner]. Devices of a Group share the machine's memory out.
func (r *Runner) FreeMemory() (free, total int64, err error) {
	free, total, err = r.alloc.Memory()
	if r.options.Capacity == 0 {
		free, total = free/int64(r.share.Size), total/int64(r.share.Size)
	}
	return free, total, err
}

const kvOwner = "kv_cache"

// AllocateKV implements [modelrunner.Runner].
func (r *Runner) AllocateKV(blocks int) error {
	if r.kv != nil {
		return fmt.Errorf("cpurunner: AllocateKV(%d): the runner has its %d KV blocks already", blocks, r.blocks)
	}
	if perBlock := r.KVBytesPerBlock(); blocks <= 0 || int64(blocks) > math.MaxInt32/int64(r.options.BlockSize) ||
		int64(blocks) > math.MaxInt/perBlock {
		return fmt.Errorf("cpurunner: AllocateKV(%d): want a number of blocks above 0 whose slots fit in an int32",
			blocks)
	}
	if err := r.parts.Retry(); err != nil { // what Sleep could not release
		return err
	}
	memory, err := r.floats(kvOwner, int(r.KVBytesPerBlock()/4)*blocks)
	if err != nil {
		return err
	}
	r.blocks, r.kv = blocks, make([]cpu.KVCache, r.NumLayers)
	for i := range r.kv {
		c := cpu.KVCache{Blocks: blocks, BlockSize: r.options.BlockSize, KVHeads: r.NumKVHeads, HeadDim: r.HeadDim}
		n := c.Elements()
		c.K, c.V, memory = memory[:n:n], memory[n:2*n:2*n], memory[2*n:]
		r.kv[i] = c
	}
	return nil
}

// Holdings implements [modelrunner.Runner]. Other devices may share the ledger, and a draft the device.
func (r *Runner) Holdings() []ledger.Holding {
	return slices.DeleteFunc(r.alloc.Ledger().Holdings(), func(h ledger.Holding) bool {
		return h.Device != r.alloc.Device() || strings.HasPrefix(h.Owner, draftPrefix) != (r.options.DraftOf != nil)
	})
}

// Close implements [modelrunner.Runner]: it releases every part, the last acquired first, whatever
// fails. What would not go is in the error, stays in the ledger, and is tried again by another
// Close.
func (r *Runner) Close() error {
	err := r.parts.Release(nil)
	r.kv, r.blocks, r.work, r.ropes, r.pooler = nil, 0, workspace{}, nil, nil
	if r.pool != nil && r.options.DraftOf == nil {
		r.pool.Close()
	}
	return err
}
