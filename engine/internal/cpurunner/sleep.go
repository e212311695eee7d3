package cpurunner

import (
	"errors"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"

	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/ledger"
)

// hostDevice is where the ledger has what is kept while the runner sleeps.
const hostDevice = "host"

// Sleep implements [modelrunner.Sleeper]. On this device the weights are the mapped files of the
// checkpoint. Kept on the host, they stay mapped: the ledger moves them from the device to "host",
// nothing is copied, and replacing or removing the files does not matter. Not kept, they are
// unmapped.
func (r *Runner) Sleep(keep bool) error { return errors.Join(r.FreeKV(), r.FreeWeights(keep)) }

// FreeKV implements [modelrunner.SleepingRank].
func (r *Runner) FreeKV() error {
	r.kv, r.blocks = nil, 0
	return r.parts.Release(func(p modelrunner.Part) bool { return p.Owner == r.owner(kvOwner) })
}

// FreeWeights implements [modelrunner.SleepingRank].
func (r *Runner) FreeWeights(keep bool) error {
	if r.model != nil {
		r.model = &model{Config: r.share.Config} // no way into memory that is gone
	}
	r.work, r.ropes, r.pooler = workspace{}, nil, nil
	err := r.parts.Release(func(p modelrunner.Part) bool { return p.Owner != r.owner(kvOwner) && (p.Stays == 0 || !keep) })
	if keep && r.files != nil {
		r.files.enter(r.alloc.Ledger(), hostDevice)
	}
	return err
}

// WakeWeights implements [modelrunner.Sleeper]. Files that Sleep did not keep are opened again; a
// *checkpoint.Error when they are not what they were.
func (r *Runner) WakeWeights() (err error) {
	if r.work.x != nil {
		return nil
	}
	if err := r.parts.Retry(); err != nil { // what Sleep could not release
		return err
	}
	kept := r.files != nil
	woken := false
	defer func() { // after a panic too
		if !woken {
			err = errors.Join(err, r.FreeWeights(kept)) // the KV cache, when it is awake, stays
		}
	}()
	if !kept {
		ckpt, err := r.source.Reopen()
		if err != nil {
			return err
		}
		r.adopt(ckpt)
	}
	if err := r.load(); err != nil {
		return err
	}
	woken = true
	return nil
}

// files is the open checkpoint, whose mapped files are in the ledger: what the rank has of them,
// once that is known.
type files struct {
	owner  string
	ckpt   *checkpoint.Checkpoint
	others map[string]int64 // by file: bytes that only other ranks have
	ids    []ledger.ID
}

// adopt makes a checkpoint the runner's.
func (r *Runner) adopt(ckpt *checkpoint.Checkpoint) {
	f := &files{owner: r.owner("weights"), ckpt: ckpt}
	p := modelrunner.Part{Owner: f.owner, Stays: 1}
	for _, m := range ckpt.Mappings() {
		p.Bytes += m.Bytes
	}
	p.Release = func() error {
		err := ckpt.Close()
		r.files = nil
		return errors.Join(err, f.strike(r.alloc.Ledger()))
	}
	r.files = f
	r.parts.Add(p)
}

// enter puts the files in the ledger as a device's, and no one else's.
func (f *files) enter(l *ledger.Ledger, device string) {
	_ = f.strike(l) // its own ids, which are live
	for _, m := range f.ckpt.Mappings() {
		f.ids = append(f.ids, l.Add(ledger.Holding{
			Owner: f.owner, Kind: "file", Device: device,
			Bytes: m.Bytes - f.others[m.File], Addr: m.Addr,
		}))
	}
}

func (f *files) strike(l *ledger.Ledger) (err error) {
	for _, id := range f.ids {
		err = errors.Join(err, l.Remove(id))
	}
	f.ids = nil
	return err
}
