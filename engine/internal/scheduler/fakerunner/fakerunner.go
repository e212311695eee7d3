// Package fakerunner is a model runner without a model, for tests of what drives one. Its KV cache
// holds the tokens themselves, so it notices a wrong slot, position or block table, and its next
// token is a hash of the whole context as the cache has it.
package fakerunner

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"sync/atomic"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/ledger"
)

// BytesPerBlock is what a block of KV cache costs.
const BytesPerBlock = 1024

// Runner is the fake. Set the fields before use.
type Runner struct {
	BlockSize int
	Vocab     int32
	Free      int64                                // answer of FreeMemory; 0 is 1 GiB
	OnExecute func(*modelrunner.Batch) error       // called first in every step
	OnSeq     func(i int, s modelrunner.Seq) error // its error is that sequence's own
	OnClose   func() error
	Pick      func(context []int32, st *sample.State) int32 // instead of the hash
	Ledger    *ledger.Ledger                                // nil: one of its own

	closed atomic.Int32
	steps  atomic.Int32
	ids    []ledger.ID
	kv     []entry
}

// entry is what the cache holds for one token.
type entry struct{ token, position int32 }

// Next is the token that follows a context, for a request with this sampler.
func (r *Runner) Next(context []int32, st *sample.State) int32 {
	if r.Pick != nil {
		return r.Pick(context, st)
	}
	h := fnv.New64a()
	for _, id := range context {
		h.Write([]byte{byte(id), byte(id >> 8), byte(id >> 16), byte(id >> 24)})
	}
	if st != nil && st.Params.Temperature > 0 {
		fmt.Fprint(h, st.Params.Seed, len(st.Output))
	}
	next := int32((h.Sum64() >> 32) * uint64(r.Vocab) >> 32)
	for st != nil && len(st.Output) < st.Params.MinTokens && slices.Contains(st.Params.StopIDs, next) {
		next = (next + 1) % r.Vocab
	}
	return next
}

// KVBytesPerBlock implements modelrunner.Runner.
func (r *Runner) KVBytesPerBlock() int64 { return BytesPerBlock }

// FreeMemory implements modelrunner.Runner.
func (r *Runner) FreeMemory() (free, total int64, err error) {
	if r.Free == 0 {
		return 1 << 30, 2 << 30, nil
	}
	return r.Free, 2 * r.Free, nil
}

// AllocateKV implements modelrunner.Runner.
func (r *Runner) AllocateKV(blocks int) error {
	r.kv = make([]entry, blocks*r.BlockSize)
	for i := range r.kv {
		r.kv[i] = entry{-1, -1}
	}
	r.Hold(ledger.Holding{Owner: "kv_cache", Kind: "fake", Device: "fake:0", Bytes: int64(blocks) * BytesPerBlock})
	return nil
}

// Execute implements modelrunner.Runner.
func (r *Runner) Execute(b *modelrunner.Batch) ([]modelrunner.SeqResult, error) {
	r.steps.Add(1)
	if r.OnExecute != nil {
		if err := r.OnExecute(b); err != nil {
			return nil, err
		}
	}
	if len(b.Tokens) != len(b.Positions) || len(b.Tokens) != len(b.Slots) {
		return nil, fmt.Errorf("fakerunner: %d tokens, %d positions, %d slots", len(b.Tokens), len(b.Positions),
			len(b.Slots))
	}
	written := map[int32]bool{}
	for i, slot := range b.Slots {
		if written[slot] {
			return nil, fmt.Errorf("fakerunner: two tokens of a step go to slot %d", slot)
		}
		written[slot] = true
		r.kv[slot] = entry{b.Tokens[i], b.Positions[i]}
	}
	out := make([]modelrunner.SeqResult, len(b.Seqs))
	for i, s := range b.Seqs {
		context, err := r.context(b, s)
		if err != nil {
			return nil, fmt.Errorf("fakerunner: sequence %d of the step: %w", i, err)
		}
		if r.OnSeq != nil {
			if out[i].Err = r.OnSeq(i, s); out[i].Err != nil {
				continue
			}
		}
		for j, target := range s.Targets {
			first := s.Context - s.Len
			out[i].PromptLogprobs = append(out[i].PromptLogprobs, []sample.Logprob{
				{Token: target, Logprob: -float32(r.Next(context[:first+j+1], nil)), Rank: 1},
			})
		}
		if s.Sampler != nil {
			out[i].Token = r.Next(context, s.Sampler)
			if s.Sampler.Params.Logprobs >= 0 {
				out[i].Logprobs = []sample.Logprob{{Token: out[i].Token, Logprob: -0.5, Rank: 1}}
			}
		}
	}
	return out, nil
}

// context reads a sequence's tokens back out of the cache, and checks every one.
func (r *Runner) context(b *modelrunner.Batch, s modelrunner.Seq) ([]int32, error) {
	out := make([]int32, s.Context)
	for p := range out {
		slot := int(s.Blocks[p/r.BlockSize])*r.BlockSize + p%r.BlockSize
		if at := r.kv[slot].position; at != int32(p) {
			return nil, fmt.Errorf("slot %d should hold position %d and holds %d", slot, p, at)
		}
		out[p] = r.kv[slot].token
	}
	for i := range s.Len {
		p := s.Context - s.Len + i
		if b.Positions[s.Start+i] != int32(p) || b.Tokens[s.Start+i] != out[p] {
			return nil, fmt.Errorf("row %d is token %d at position %d, not token %d at %d",
				s.Start+i, b.Tokens[s.Start+i], b.Positions[s.Start+i], out[p], p)
		}
	}
	return out, nil
}

// ReadKV implements modelrunner.KVCopier.
func (r *Runner) ReadKV(block int32, dst []byte) error {
	kv, err := r.block(block, dst)
	for i, e := range kv {
		binary.LittleEndian.PutUint32(dst[8*i:], uint32(e.token))
		binary.LittleEndian.PutUint32(dst[8*i+4:], uint32(e.position))
	}
	return err
}

// WriteKV implements modelrunner.KVCopier.
func (r *Runner) WriteKV(block int32, src []byte) error {
	kv, err := r.block(block, src)
	for i := range kv {
		kv[i] = entry{int32(binary.LittleEndian.Uint32(src[8*i:])), int32(binary.LittleEndian.Uint32(src[8*i+4:]))}
	}
	return err
}

func (r *Runner) block(b int32, host []byte) ([]entry, error) {
	first := int(b) * r.BlockSize
	if b < 0 || first+r.BlockSize > len(r.kv) || len(host) != BytesPerBlock || 8*r.BlockSize > BytesPerBlock {
		return nil, fmt.Errorf("fakerunner: copy of block %d to or from %d bytes", b, len(host))
	}
	return r.kv[first : first+r.BlockSize], nil
}

// Hold makes the runner own something until Close.
func (r *Runner) Hold(h ledger.Holding) {
	if r.Ledger == nil {
		r.Ledger = ledger.New(false)
	}
	r.ids = append(r.ids, r.Ledger.Add(h))
}

// Holdings implements modelrunner.Runner.
func (r *Runner) Holdings() []ledger.Holding { return r.Ledger.Holdings() }

// Close implements modelrunner.Runner.
func (r *Runner) Close() error {
	if r.OnClose != nil {
		if err := r.OnClose(); err != nil {
			return err
		}
	}
	for _, id := range r.ids {
		if err := r.Ledger.Remove(id); err != nil {
			return err
		}
	}
	r.closed.Add(1)
	r.ids, r.kv = nil, nil
	return nil
}

// Closed counts the calls of Close that went well.
func (r *Runner) Closed() int { return int(r.closed.Load()) }

// Steps counts the calls of Execute.
func (r *Runner) Steps() int { return int(r.steps.Load()) }

var (
	_ modelrunner.Runner   = (*Runner)(nil)
	_ modelrunner.KVCopier = (*Runner)(nil)
)
