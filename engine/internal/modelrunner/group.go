package modelrunner

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/enginetest/enginetest/ledger"
)

// Rank is the runner of one device among several that share a model.
type Rank interface {
	Runner
	// Device is its name in the ledger.
	Device() string
}

// SleepingRank is a Rank that is a Sleeper and a KVCopier. A Group undoes with it what another rank
// could not do.
type SleepingRank interface {
	Rank
	SleepingRunner
}

// SleepingRunner is a Runner that can sleep, half too, and copy KV blocks.
type SleepingRunner interface {
	Runner
	Sleeper
	KVCopier
	// FreeKV undoes AllocateKV.
	FreeKV() error
	// FreeWeights undoes WakeWeights: it is Sleep, but the KV cache stays.
	FreeWeights(keep bool) error
}

// Link is what the ranks of a Group exchange numbers over. A rank that waits in an aborted link
// gets [ErrAborted].
type Link interface {
	// Reset readies the link for a step. No rank may be waiting.
	Reset()
	// Abort wakes every rank that waits, and fails every wait until Reset.
	Abort()
}

// ErrAborted is the error of a rank that waited for another one, which failed.
var ErrAborted = errors.New("modelrunner: another rank failed")

// RankError is what one rank of a Group failed of.
type RankError struct {
	Rank   int
	Device string
	Err    error
}

func (e *RankError) Error() string { return fmt.Sprintf("%s: %v", e.who(), e.Err) }

func (e *RankError) who() string { return fmt.Sprintf("rank %d (%s)", e.Rank, e.Device) }

// Unwrap is what the rank failed of.
func (e *RankError) Unwrap() error { return e.Err }

// Panic is a rank's panic.
type Panic struct {
	Rank  string // "rank 1 (cpu:1)"
	Value string // printed: the value itself could keep the rank reachable
	Stack string
	err   error
}

func (p *Panic) Error() string { return fmt.Sprintf("panic: %s\n%s", p.Value, p.Stack) }

// Unwrap is the panic's value, when that is an error.
func (p *Panic) Unwrap() error { return p.err }

// Group is the Runner of a model that several devices share. It does everything on every rank,
// whatever fails, each in a goroutine of its own that is over when the call is. Errors are a
// *[RankError] for each rank that failed by itself.
type Group struct {
	devices []string
	ranks   []Rank // nil: not opened
	link    Link
	busy    []atomic.Bool // ranks that have something to do
	asleep  bool          // the weights
	kept    bool          // while they are asleep: on the host
}

// NewGroup opens a rank for each device, all at once. When one fails, the others are closed. The
// Runner that it gives can sleep and copy KV blocks when each of its ranks is a [SleepingRank].
func NewGroup(devices []string, link Link, open func(Shard) (Rank, error)) (Runner, error) {
	g := &Group{
		devices: devices, ranks: make([]Rank, len(devices)), busy: make([]atomic.Bool, len(devices)),
		link: link,
	}
	sleeps := make([]bool, len(devices))
	err := g.each(func(i int) error {
		r, err := open(Shard{Rank: i, Size: len(devices)})
		if err == nil {
			g.ranks[i] = r
			_, sleeps[i] = r.(SleepingRank)
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	for _, ok := range sleeps {
		if !ok {
			return g, nil
		}
	}
	return &sleepingGroup{g}, nil
}

// each does something for all ranks at once, waits for all of them, and joins their errors. A panic
// is an error here.
func (g *Group) each(do func(rank int) error) error {
	errs := make([]error, len(g.devices))
	one := func(i int) {
		g.busy[i].Store(true)
		defer g.busy[i].Store(false)
		defer func() {
			if v := recover(); v != nil {
				cause, _ := v.(error)
				e := &RankError{Rank: i, Device: g.devices[i]}
				e.Err = &Panic{e.who(), fmt.Sprint(v), string(debug.Stack()), cause}
				errs[i] = e
			}
		}()
		if err := do(i); err != nil {
			errs[i] = &RankError{i, g.devices[i], err}
		}
	}
	var wg sync.WaitGroup
	for i := 1; i < len(errs); i++ {
		wg.Go(func() { one(i) })
	}
	one(0)
	wg.Wait()
	return joinCauses(errs)
}

// Busy names the ranks that are at something now, but those that only wait for others, as far as
// the link knows them. It may be called beside everything else.
func (g *Group) Busy() (names []string) {
	link, _ := g.link.(interface{ Waiting(rank int) bool })
	for i := range g.busy {
		if g.busy[i].Load() && (link == nil || !link.Waiting(i)) {
			names = append(names, (&RankError{Rank: i, Device: g.devices[i]}).who())
		}
	}
	return names
}

// joinCauses leaves out the ranks that only waited for one that failed.
func joinCauses(errs []error) error {
	var causes []error
	for _, err := range errs {
		if !errors.Is(err, ErrAborted) {
			causes = append(causes, err)
		}
	}
	if err := errors.Join(causes...); err != nil {
		return err
	}
	return errors.Join(errs...)
}

// Execute implements [Runner]. Each rank computes the same batch; the first one's results are the
// step's. A rank that fails wakes those that wait for it.
func (g *Group) Execute(b *Batch) (results []SeqResult, err error) {
	g.link.Reset()
	err = g.each(func(i int) error {
		whole := false
		defer func() { // after a panic too
			if !whole {
				g.link.Abort()
			}
		}()
		out, err := g.ranks[i].Execute(b)
		if err != nil {
			return err
		}
		if whole = true; i == 0 {
			results = out
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}

// OnThread implements [Threaded]: the first rank's thread, which is where its part of Execute runs.
func (g *Group) OnThread(f func() error) error { return OnThread(g.ranks[0], f) }

// Ranks are the runners of the devices, in order.
func (g *Group) Ranks() []Rank { return g.ranks }

// KVBytesPerBlock implements [Runner]: of one rank.
func (g *Group) KVBytesPerBlock() int64 { return g.ranks[0].KVBytesPerBlock() }

// FreeMemory implements [Runner]: of the rank that has least.
func (g *Group) FreeMemory() (free, total int64, err error) {
	for i, r := range g.ranks {
		f, t, err := r.FreeMemory()
		if err != nil {
			return 0, 0, &RankError{i, g.devices[i], err}
		}
		if i == 0 || f < free {
			free, total = f, t
		}
	}
	return free, total, nil
}

// AllocateKV implements [Runner]: this many blocks on every rank, or on none if they can undo it.
func (g *Group) AllocateKV(blocks int) error {
	done := make([]bool, len(g.ranks))
	err := g.each(func(i int) error {
		err := g.ranks[i].AllocateKV(blocks)
		done[i] = err == nil
		return err
	})
	return errors.Join(err, g.undo(err, done, SleepingRank.FreeKV))
}

// undo is done on the ranks that have done what another one failed to do.
func (g *Group) undo(failed error, done []bool, how func(SleepingRank) error) error {
	if failed == nil {
		return nil
	}
	return g.each(func(i int) error {
		if r, ok := g.ranks[i].(SleepingRank); ok && done[i] {
			return how(r)
		}
		return nil
	})
}

// Holdings implements [Runner]: those of all ranks.
func (g *Group) Holdings() (all []ledger.Holding) {
	for _, r := range g.ranks {
		all = append(all, r.Holdings()...)
	}
	return all
}

// Close implements [Runner].
func (g *Group) Close() error {
	return g.each(func(i int) error {
		if g.ranks[i] == nil {
			return nil
		}
		return g.ranks[i].Close()
	})
}

// sleepingGroup is a Group of which all ranks can sleep and copy KV blocks.
type sleepingGroup struct{ *Group }

var (
	_ Runner   = (*sleepingGroup)(nil)
	_ Sleeper  = (*sleepingGroup)(nil)
	_ KVCopier = (*sleepingGroup)(nil)

	_ SleepingRunner = (*sleepingGroup)(nil)
)

func (g *sleepingGroup) rank(i int) SleepingRank { return g.ranks[i].(SleepingRank) }

// Sleep implements [Sleeper].
func (g *sleepingGroup) Sleep(keep bool) error {
	g.kept = keep && (g.kept || !g.asleep)
	g.asleep = true
	return g.each(func(i int) error { return g.rank(i).Sleep(keep) })
}

// WakeWeights implements [Sleeper].
func (g *sleepingGroup) WakeWeights() error {
	if !g.asleep {
		return nil
	}
	done := make([]bool, len(g.ranks))
	err := g.each(func(i int) error {
		err := g.rank(i).WakeWeights()
		done[i] = err == nil
		return err
	})
	g.asleep = err != nil
	return errors.Join(err, g.undo(err, done, func(r SleepingRank) error { return r.FreeWeights(g.kept) }))
}

// FreeKV implements [SleepingRunner].
func (g *sleepingGroup) FreeKV() error {
	return g.each(func(i int) error { return g.rank(i).FreeKV() })
}

// FreeWeights implements [SleepingRunner].
func (g *sleepingGroup) FreeWeights(keep bool) error {
	g.kept = keep && (g.kept || !g.asleep)
	g.asleep = true
	return g.each(func(i int) error { return g.rank(i).FreeWeights(keep) })
}

// ReadKV implements [KVCopier]. A block's bytes are those of each rank in turn.
func (g *sleepingGroup) ReadKV(block int32, dst []byte) error {
	return g.copyKV(block, dst, func(r SleepingRank, part []byte) error { return r.ReadKV(block, part) })
}

// WriteKV implements [KVCopier].
func (g *sleepingGroup) WriteKV(block int32, src []byte) error {
	return g.copyKV(block, src, func(r SleepingRank, part []byte) error { return r.WriteKV(block, part) })
}

func (g *sleepingGroup) copyKV(block int32, host []byte, copyPart func(r SleepingRank, part []byte) error) error {
	n := int(g.KVBytesPerBlock())
	if len(host) != n*len(g.ranks) {
		return fmt.Errorf("modelrunner: copy of KV block %d to or from %d bytes: %d ranks have %d bytes each", block,
			len(host), len(g.ranks), n)
	}
	for i := range g.ranks {
		if err := copyPart(g.rank(i), host[i*n:(i+1)*n]); err != nil {
			return &RankError{i, g.devices[i], err}
		}
	}
	return nil
}
