package cudarunner

import (
	"cmp"
	"errors"
	"fmt"
	"os"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/ledger"
)

// AllReduce is how the ranks of a group add up their partial sums.
type AllReduce string

// AllReduceEnv is the environment variable that says how, when [Options] do not.
const AllReduceEnv = "ENGINETEST_ALL_REDUCE"

// The ways to reduce. All give the same bits for two ranks.
const (
	Automatic AllReduce = ""     // whichever was measured to be faster: see docs/performance.md
	Own       AllReduce = "own"  // kernels that write to the other devices' memory
	NCCL      AllReduce = "nccl" // NVIDIA's library, for everything
)

// NewGroup makes the runner of an open checkpoint, which it closes, that the devices share: a rank
// each, with a thread, a stream, weights, KV cache and graphs of its own. Each device has to reach
// the memory of each other (peer access). Errors are a *modelrunner.RankError for each rank that
// failed, or a *modelrunner.SplitError.
//
// A device may be named twice, for tests: its ranks take turns on it. hooks are those of a rank;
// nil: all have the options'.
//
// In the ledger, besides what a [Runner] has: all_reduce (what the others write to), and nccl, its
// bytes by the driver's count of free memory.
func NewGroup(ckpt *checkpoint.Checkpoint, devices []cuda.Device, o Options,
	hooks func(rank int) modelrunner.Hooks,
) (_ modelrunner.Runner, err error) {
	defer func() { err = errors.Join(err, ckpt.Close()) }() // after a panic too
	if _, err := modelrunner.Split(ckpt.Config, modelrunner.Shard{Size: len(devices)}); err != nil {
		return nil, err
	}
	l, err := newLink(devices, o)
	if err != nil {
		return nil, err
	}
	if o.Ledger == nil {
		o.Ledger = ledger.New(o.Stacks)
	}
	var names []string
	for _, d := range devices {
		names = append(names, nameOf(d))
	}
	g, err := modelrunner.NewGroup(names, l, func(s modelrunner.Shard) (modelrunner.Rank, error) {
		options := o
		options.Device = devices[s.Rank]
		if hooks != nil {
			options.Hooks = hooks(s.Rank)
		}
		r, err := open(ckpt, s, l, options)
		if err != nil {
			return nil, err
		}
		l.runners[s.Rank] = r
		return &rank{r}, nil
	})
	if err != nil {
		return nil, err
	}
	if err := l.connect(); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// nameOf is a device's name in errors: what engine.Config takes.
func nameOf(d cuda.Device) string { return "cuda:" + d.UUID }

// newLink refuses what cannot be a group, before any memory is taken.
func newLink(devices []cuda.Device, o Options) (*link, error) {
	if len(devices) < 2 || len(devices) > maxRanks {
		return nil, fmt.Errorf("cudarunner: a group of %d devices, want 2 to %d", len(devices), maxRanks)
	}
	l := &link{runners: make([]*Runner, len(devices)), patience: cmp.Or(max(o.Patience, 0), patience)}
	for i, d := range devices {
		for _, e := range devices[:i] {
			if d.Ordinal == e.Ordinal {
				l.shared = true
				continue
			}
			if err := reaches(d, e); err != nil {
				return nil, err
			}
			if err := reaches(e, d); err != nil {
				return nil, err
			}
		}
	}
	switch how := cmp.Or(o.AllReduce, AllReduce(os.Getenv(AllReduceEnv))); how {
	case Automatic, Own:
	case NCCL:
		if l.shared {
			return nil, fmt.Errorf("%w: it wants a device for each rank", ErrNoNCCL)
		}
		lib, err := findNCCL()
		if err != nil {
			return nil, err
		}
		l.nccl, l.ncclFrom = &communicators{lib: lib, stopped: make(chan struct{})}, 1
	default:
		return nil, fmt.Errorf("cudarunner: AllReduce %q, want %q, %q or %q", how, Automatic, Own, NCCL)
	}
	if o.linked != nil {
		o.linked(l)
	}
	return l, nil
}

func reaches(from, to cuda.Device) error {
	can, err := from.CanAccessPeer(to)
	if err == nil && !can {
		err = &PeerError{From: from, To: to}
	}
	return err
}

// rank is the Runner of one device of a group.
type rank struct{ *Runner }

var _ modelrunner.Rank = (*rank)(nil)

// Device implements [modelrunner.Rank].
func (k *rank) Device() string { return k.options.Device.UUID }

// Execute implements [modelrunner.Runner].
func (k *rank) Execute(b *modelrunner.Batch) (_ []modelrunner.SeqResult, err error) {
	defer k.group.settle(&err)
	if err := k.group.link.nccl.usable(); err != nil {
		return nil, err
	}
	return k.Runner.Execute(b)
}

// connect lets every device write to every other, and opens NCCL when it is wanted.
func (l *link) connect() error {
	for _, r := range l.runners {
		for _, peer := range l.runners {
			if r.options.Device.Ordinal == peer.options.Device.Ordinal {
				continue
			}
			if err := r.worker.Do(func() error { return r.worker.EnablePeer(peer.worker) }); err != nil {
				return &modelrunner.RankError{Rank: r.share.Rank, Device: nameOf(r.options.Device), Err: err}
			}
		}
	}
	if l.nccl != nil {
		return l.openNCCL()
	}
	return nil
}

// PeerError says that two devices cannot share a model.
type PeerError struct{ From, To cuda.Device }

func (e *PeerError) Error() string {
	return fmt.Sprintf("cudarunner: %s has no access to the memory of %s (no NVLink, and no PCIe path between them that allows it): devices that share a model need it; "+
		"`nvidia-smi topo -p2p w` shows which pairs have it", e.From, e.To)
}
