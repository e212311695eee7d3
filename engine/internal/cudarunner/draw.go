package cudarunner

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/sample"
)

// drawer draws tokens from logits and finds log-probabilities, on the device or, where that is
// asked for, on the host.
type drawer struct {
	*products
	in       *staging
	logits   *cuda.Pinned // rows that the host samples; made when the first is
	samplers chan *sample.Sampler
}

// draw draws a token from each of n rows of logits.
func (r *drawer) draw(s *step, n int) error {
	w := &r.work
	if !r.share.First() {
		return nil
	}
	if s.sifted {
		return r.sift(s, n)
	}
	// The tokens go to host memory: a copy would take 6 µs.
	return r.run("race", cuda.Dim{X: raceShares, Y: n}, 256, 0, w.ptr(w.logits), s.in.draws, w.ptr(w.best),
		w.ptr(w.done), r.in.tokens.Ptr(), r.VocabSize)
}

// fetch brings tokens and log-probabilities back, and the logits of rows that the host has to look
// at, and waits.
func (r *drawer) fetch(s *step, rows []wanted) error {
	w, n := &r.work, int64(len(rows))
	if !r.share.First() {
		return r.stream.Synchronize()
	}
	if s.sifted { // otherwise the tokens are there already
		if err := w.memory.CopyToAsync(r.in.tokens, 0, w.tokensOut, 4*n, r.stream); err != nil {
			return err
		}
		if slices.ContainsFunc(rows, func(w wanted) bool { return w.logprobs >= 0 }) {
			if err := w.memory.CopyToAsync(r.in.tokens, 4*logitRows, w.found, n*foundBytes, r.stream); err != nil {
				return err
			}
		}
	}
	bytes := int64(4 * r.VocabSize)
	copied := func(need func(i int) bool) error {
		for i := range rows {
			if !need(i) {
				continue
			}
			if err := r.hostLogits(); err != nil {
				return err
			}
			if err := w.memory.CopyToAsync(r.logits, int64(i)*bytes, w.logits+int64(i)*bytes, bytes,
				r.stream); err != nil {
				return err
			}
		}
		return r.stream.Synchronize()
	}
	if err := copied(func(i int) bool { return rows[i].host }); err != nil {
		return err
	}
	handedBack := func(i int) bool { return !rows[i].host && !r.done(i, rows[i]) }
	for i := range rows {
		if handedBack(i) {
			return copied(handedBack)
		}
	}
	return nil
}

// done says that the device did all there was to do for a row, the i-th of those that fetch
// brought.
func (r *drawer) done(i int, w wanted) bool {
	return !w.host && (w.state == nil || r.tokens()[i] >= 0) && (w.logprobs < 0 || r.found()[i].n >= 0)
}

// tokens and found are what the device gave.
func (r *drawer) tokens() *[logitRows]int32 {
	return (*[logitRows]int32)(unsafe.Pointer(&r.in.tokens.Bytes()[0]))
}

func (r *drawer) found() *[logitRows]found {
	return (*[logitRows]found)(unsafe.Pointer(&r.in.tokens.Bytes()[4*logitRows]))
}

// hostLogits makes room for logits in host memory, when the first row needs it.
func (r *drawer) hostLogits() error {
	if r.logits != nil {
		return nil
	}
	bytes := int64(4 * logitRows * r.VocabSize)
	if hook := r.options.Hooks.Allocate; hook != nil {
		if err := hook("staging", bytes); err != nil {
			return err
		}
	}
	m, err := r.worker.AllocPinned("staging", bytes)
	if err != nil {
		return err
	}
	r.own("staging", bytes, m.Free)
	r.logits = m
	return nil
}

// results reads what fetch brought: what the device did as it is, logits through the host's
// sampler.
func (r *drawer) results(b *modelrunner.Batch, rows []wanted, out []modelrunner.SeqResult) {
	if !r.share.First() {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	for i, w := range rows {
		res, seq := &out[w.seq], &b.Seqs[w.seq]
		if r.done(i, w) {
			f := &r.found()[i]
			if w.state == nil {
				res.PromptLogprobs[w.target] = f.logprobs(seq.Targets[w.target], r.VocabSize)
				continue
			}
			if res.Token = r.tokens()[i]; w.logprobs >= 0 {
				res.Logprobs = f.logprobs(res.Token, r.VocabSize)
			}
			continue
		}
		logits := unsafe.Slice((*float32)(unsafe.Pointer(&r.logits.Bytes()[4*i*r.VocabSize])), r.VocabSize)
		s := <-r.samplers
		wg.Go(func() {
			defer func() { r.samplers <- s }()
			if w.state == nil {
				res.PromptLogprobs[w.target] = s.Logprobs(logits, seq.Targets[w.target], seq.PromptLogprobs, seq.LogprobsMode)
				return
			}
			res.Token, res.Logprobs, res.Err = s.Draw(w.state, logits)
		})
	}
}
