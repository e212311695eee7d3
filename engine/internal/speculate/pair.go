// Package speculate makes a model runner propose tokens that its next step verifies (speculative
// decoding): a runner over a runner, or over two.
package speculate

import (
	"errors"
	"fmt"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/ledger"
)

// pair is a target and its draft as far as they are one runner: their memory. A KV block is one of
// each, with the same number.
type pair struct {
	target, draft modelrunner.SleepingRunner
	ranks         int  // devices of each
	asleep        bool // the weights
	kept          bool // while they are asleep: on the host
}

var (
	_ modelrunner.SleepingRunner = (*Model)(nil)
	_ modelrunner.Threaded       = (*Model)(nil)
	_ modelrunner.SleepingRunner = (*NGram)(nil)
	_ modelrunner.Threaded       = (*NGram)(nil)
)

// Target returns the runner of the model whose tokens come out.
func (p *pair) Target() modelrunner.Runner { return p.target }

// Draft returns the runner of the smaller model.
func (p *pair) Draft() modelrunner.Runner { return p.draft }

// KVBytesPerBlock implements [modelrunner.Runner].
func (p *pair) KVBytesPerBlock() int64 { return p.target.KVBytesPerBlock() + p.draft.KVBytesPerBlock() }

// FreeMemory implements [modelrunner.Runner].
func (p *pair) FreeMemory() (free, total int64, err error) { return p.target.FreeMemory() }

// AllocateKV implements [modelrunner.Runner]: both caches, or none.
func (p *pair) AllocateKV(blocks int) error {
	if err := p.target.AllocateKV(blocks); err != nil {
		return err
	}
	if err := p.draft.AllocateKV(blocks); err != nil {
		return errors.Join(ofDraft(err), p.target.FreeKV())
	}
	return nil
}

// FreeKV implements [modelrunner.SleepingRunner].
func (p *pair) FreeKV() error { return errors.Join(ofDraft(p.draft.FreeKV()), p.target.FreeKV()) }

// FreeWeights implements [modelrunner.SleepingRunner].
func (p *pair) FreeWeights(keep bool) error {
	p.fallAsleep(keep)
	return errors.Join(ofDraft(p.draft.FreeWeights(keep)), p.target.FreeWeights(keep))
}

// Sleep implements [modelrunner.Sleeper].
func (p *pair) Sleep(keep bool) error {
	p.fallAsleep(keep)
	return errors.Join(ofDraft(p.draft.Sleep(keep)), p.target.Sleep(keep))
}

func (p *pair) fallAsleep(keep bool) {
	p.kept = keep && (p.kept || !p.asleep)
	p.asleep = true
}

// WakeWeights implements [modelrunner.Sleeper]: those of both, or of none.
func (p *pair) WakeWeights() error {
	if !p.asleep {
		return nil
	}
	if err := p.target.WakeWeights(); err != nil {
		return err
	}
	if err := p.draft.WakeWeights(); err != nil {
		return errors.Join(ofDraft(err), p.target.FreeWeights(p.kept))
	}
	p.asleep = false
	return nil
}

// ReadKV implements [modelrunner.KVCopier]. A block's bytes are the target's, then the draft's.
func (p *pair) ReadKV(block int32, dst []byte) error {
	t, d, err := p.split(dst)
	if err != nil {
		return err
	}
	return errors.Join(p.target.ReadKV(block, t), ofDraft(p.draft.ReadKV(block, d)))
}

// WriteKV implements [modelrunner.KVCopier].
func (p *pair) WriteKV(block int32, src []byte) error {
	t, d, err := p.split(src)
	if err != nil {
		return err
	}
	return errors.Join(p.target.WriteKV(block, t), ofDraft(p.draft.WriteKV(block, d)))
}

func (p *pair) split(host []byte) (target, draft []byte, err error) {
	n := int(p.target.KVBytesPerBlock()) * p.ranks
	if want := int(p.KVBytesPerBlock()) * p.ranks; len(host) != want {
		return nil, nil, fmt.Errorf("speculate: %d bytes for a KV block of %d", len(host), want)
	}
	return host[:n:n], host[n:], nil
}

// Holdings implements [modelrunner.Runner].
func (p *pair) Holdings() []ledger.Holding { return append(p.target.Holdings(), p.draft.Holdings()...) }

// Close implements [modelrunner.Runner]. The draft, which was made last, goes first.
func (p *pair) Close() error { return errors.Join(ofDraft(p.draft.Close()), p.target.Close()) }

// OnThread implements [modelrunner.Threaded].
func (p *pair) OnThread(f func() error) error { return modelrunner.OnThread(p.target, f) }

// Busy names the ranks that are at something now.
func (p *pair) Busy() []string { return append(busy(p.target), busy(p.draft)...) }

// Target returns the runner of the model.
func (r *NGram) Target() modelrunner.Runner { return r.SleepingRunner }

// OnThread implements [modelrunner.Threaded].
func (r *NGram) OnThread(f func() error) error { return modelrunner.OnThread(r.SleepingRunner, f) }

// Busy names the ranks that are at something now.
func (r *NGram) Busy() []string { return busy(r.SleepingRunner) }

func busy(r modelrunner.Runner) []string {
	if g, ok := r.(interface{ Busy() []string }); ok {
		return g.Busy()
	}
	return nil
}

// ofDraft says that an error is the draft's.
func ofDraft(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("draft model: %w", err)
}
