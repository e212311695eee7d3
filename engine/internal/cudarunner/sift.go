package cudarunner

import (
	"slices"
	"unsafe"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/sample"
)

// Sizes of sift.cu.
const (
	siftBins    = 1024
	binsBytes   = siftBins * 12
	borderBytes = 24
	// tokens with a border among them that a list has room for; when there are more, a block goes
	// over the whole row
	listedMost = 8192
)

// rule is how the kernels of sift.cu treat a row; zero: not at all.
type rule struct {
	edits, count, topK, logprobs, target, allow int32
	repetition, frequency, presence             float32
	_                                           int32
	topP, minP                                  float64
}

const ruleWords = int(unsafe.Sizeof(rule{}) / 4)

// found is what comes back for log-probabilities.
type found struct {
	sum         uint64 // in units of 2^-44
	top, chosen float32
	before      uint32
	n           int32 // -1: the host has to look
	likely      [sample.MostLikely]struct {
		logit float32
		id    int32
	}
}

const foundBytes = int64(unsafe.Sizeof(found{}))

// wanted is a row whose logits someone wants: to draw the next token of a sequence, or the
// log-probabilities of a prompt token.
type wanted struct {
	row      int
	seq      int
	state    *sample.State // nil: a prompt token
	target   int           // its index in Targets
	logprobs int           // -1: none
	host     bool          // the host does it: see [sample.Params.HostOnly]
}

// wants reports whether any row of a batch is wanted.
func wants(b *modelrunner.Batch) bool {
	return slices.ContainsFunc(b.Seqs, func(s modelrunner.Seq) bool { return s.Sampler != nil || len(s.Targets) > 0 })
}

// wantedOf lists the rows of a batch that are wanted.
func (r *feed) wantedOf(b *modelrunner.Batch) []wanted {
	rows := make([]wanted, 0, len(b.Seqs))
	for i := range b.Seqs {
		s := &b.Seqs[i]
		for j := range s.Targets {
			p := sample.Params{Logprobs: max(s.PromptLogprobs, 0), LogprobsMode: s.LogprobsMode}
			rows = append(rows, wanted{
				row: s.Start + j, seq: i, target: j, logprobs: max(s.PromptLogprobs, 0),
				host: r.options.HostSampling || p.HostOnly(r.VocabSize) != "",
			})
		}
		if s.Sampler != nil {
			p := &s.Sampler.Params
			rows = append(rows, wanted{
				row: s.Start + s.Len - 1, seq: i, state: s.Sampler, logprobs: p.Logprobs,
				host: p.HostOnly(r.VocabSize) != "" || r.options.HostSampling &&
					(p.Edits() || ruleOf(p, r.VocabSize) != rule{}),
			})
		}
	}
	return rows
}

// ruleOf is the rule of parameters, without edits.
func ruleOf(p *sample.Params, vocab int) rule {
	d := rule{logprobs: int32(max(p.Logprobs, -1) + 1)}
	if d.logprobs > 0 {
		d.target = -1
	}
	if p.Restricts() {
		d.allow = 1
	}
	if p.Greedy() {
		return d
	}
	if p.TopK < vocab {
		d.topK = int32(max(p.TopK, 0))
	}
	if p.TopP < 1 {
		d.topP = max(p.TopP, 0)
	}
	d.minP = max(p.MinP, 0)
	return d
}

// rules returns each row's rule, and the edits of all, in memory that the next call overwrites.
// Without a row to be sifted there are none. Of a group's ranks only the first draws, and touches
// the sequences' states.
func (r *feed) rules(b *modelrunner.Batch, rows []wanted) ([]rule, []sample.Edit) {
	if !r.share.First() {
		return nil, nil
	}
	r.ruled, r.edits = r.ruled[:0], r.edits[:0]
	any := false
	for _, w := range rows {
		var d rule
		switch {
		case w.host:
		case w.state == nil:
			d.logprobs, d.target = int32(w.logprobs+1), b.Seqs[w.seq].Targets[w.target]
			if d.target < 0 {
				d.target = -2 // outside of the vocabulary
			}
		default:
			p := &w.state.Params
			d = ruleOf(p, r.VocabSize)
			d.edits = int32(len(r.edits))
			r.edits = w.state.AppendEdits(r.edits)
			if d.count = int32(len(r.edits)) - d.edits; d.count == 0 {
				d.edits = 0
			}
			if d != (rule{}) {
				d.repetition, d.frequency, d.presence = p.Penalties()
			}
		}
		any = any || d != rule{}
		r.ruled = append(r.ruled, d)
	}
	if !any {
		return nil, nil
	}
	return r.ruled, r.edits
}

// setDraw says how a row is drawn; zero is greedily.
func setDraw(to []int32, s *sample.State) {
	if s.Params.Greedy() {
		return
	}
	to[0], to[1] = int32(uint32(s.Params.Seed)), int32(uint32(s.Params.Seed>>32))
	*(*float32)(unsafe.Pointer(&to[2])) = float32(s.Params.Temperature)
	to[3] = int32(s.Length())
}

// siftShares is how many blocks share a row: enough to fill the device. What is found does not
// depend on it.
func (r *drawer) siftShares(rows int) int { return max(1, min(8*r.kernels.sms/rows, raceShares)) }

// sift draws from n rows as their rules say, and returns what is likely in them.
func (r *drawer) sift(s *step, n int) error {
	w, vocab, room := &r.work, r.VocabSize, r.work.room
	logits, edited, rules, draws := w.ptr(w.logits), w.ptr(w.edited), s.in.rules, s.in.draws
	tops, bins, borders, lists, kept, found := w.ptr(w.tops), w.ptr(w.bins), w.ptr(w.borders), w.ptr(w.lists), w.ptr(w.kept), w.ptr(w.found)
	shares := r.siftShares(n)
	row, job := cuda.Dim{X: shares, Y: n}, cuda.Dim{X: shares, Y: 2 * n}
	for _, k := range []struct {
		name string
		grid cuda.Dim
		args []any
	}{
		{"sift_edit", row, []any{logits, edited, rules, s.in.edits, tops, bins, borders, found, vocab}},
		{"sift_weigh", job, []any{logits, edited, rules, draws, tops, bins, borders, vocab}},
		{"sift_list", job, []any{logits, edited, rules, draws, tops, borders, lists, room, vocab}},
		{"sift_cut", cuda.Dim{X: 2 * n}, []any{
			logits, edited, rules, draws, tops, shares, bins, borders, lists, room,
			kept, found, vocab,
		}},
		{"sift_race", row, []any{logits, edited, rules, draws, kept, w.ptr(w.best), vocab}},
		{"winner", cuda.Dim{X: n}, []any{w.ptr(w.best), draws, shares, w.ptr(w.tokensOut)}},
		{"sift_rank", row, []any{logits, rules, w.ptr(w.tokensOut), found, vocab}},
	} {
		if err := r.run(k.name, k.grid, 256, 0, k.args...); err != nil {
			return err
		}
	}
	return nil
}

// logprobs are those of a token and of the most likely ones, as [sample.Sampler.Logprobs] gives
// them.
func (f *found) logprobs(token int32, vocab int) []sample.Logprob {
	norm := sample.Norm(f.top, float64(f.sum)/(1<<44))
	out := make([]sample.Logprob, 0, f.n+1)
	listed := uint(token) >= uint(vocab)
	for i, t := range f.likely[:f.n] {
		out = append(out, sample.Logprob{Token: t.id, Logprob: sample.LogprobOf(t.logit, norm), Rank: i + 1})
		listed = listed || t.id == token
	}
	if !listed {
		out = append(out, sample.Logprob{
			Token: token, Logprob: sample.LogprobOf(f.chosen, norm),
			Rank: int(f.before) + 1,
		})
	}
	return out
}
