package cudarunner

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/fixtures"
)

// drawing is a row and what is wanted of it.
type drawing struct {
	name   string
	row    []float32
	state  *sample.State
	target int32 // with prompt: of this token the logprob is wanted, and nothing drawn
	prompt bool

	strange bool // the device may hand it back
}

// drawn is what came of it.
type drawn struct {
	modelrunner.SeqResult
	handedBack bool // the device left it to the host
}

// drawOn draws from rows of logits, up to logitRows of them, as the last part of a step does.
func drawOn(tb testing.TB, r *Runner, in []drawing) []drawn {
	tb.Helper()
	b := &modelrunner.Batch{}
	for i, d := range in {
		q := modelrunner.Seq{Start: i, Len: 1, Context: 1, Blocks: []int32{0}, Sampler: d.state, PromptLogprobs: -1}
		if d.prompt {
			q.Sampler, q.PromptLogprobs, q.Targets = nil, d.state.Params.Logprobs, []int32{d.target}
			q.LogprobsMode.Logits = d.state.Params.LogprobsMode.Logits
		}
		b.Tokens, b.Positions, b.Slots, b.Seqs = append(b.Tokens, 0), append(b.Positions, 0), append(b.Slots,
			0), append(b.Seqs, q)
	}
	rows, n := r.feed.wantedOf(b), len(in)
	out, results := make([]drawn, n), make([]modelrunner.SeqResult, n)
	require.NoError(tb, r.worker.Do(func() error {
		w := &r.work
		for i, d := range in {
			if err := w.memory.CopyFrom(w.logits+int64(4*i*r.VocabSize),
				unsafe.Slice((*byte)(unsafe.Pointer(&d.row[0])), 4*len(d.row))); err != nil {
				return err
			}
		}
		at, err := r.feed.upload(b, rows, n, n, 16)
		if err != nil {
			return err
		}
		s := &step{in: at, tokens: n, decode: true, sifted: at.rules != 0}
		if err := r.drawer.draw(s, n); err != nil {
			return err
		}
		return r.drawer.fetch(s, rows)
	}))
	for i := range results {
		results[i].PromptLogprobs = make([][]sample.Logprob, len(b.Seqs[i].Targets))
	}
	r.drawer.results(b, rows, results)
	for i := range in {
		out[i] = drawn{results[i], !r.drawer.done(i, rows[i])}
	}
	return out
}

// drawOnHost is the reference.
func drawOnHost(s *sample.Sampler, d drawing) (res modelrunner.SeqResult) {
	row := slices.Clone(d.row)
	if d.prompt {
		res.PromptLogprobs = [][]sample.Logprob{s.Logprobs(row, d.target, d.state.Params.Logprobs,
			sample.Mode{Logits: d.state.Params.LogprobsMode.Logits})}
		return res
	}
	st := *d.state
	st = sample.State{Params: st.Params, Prompt: st.Prompt, Output: st.Output}
	res.Token, res.Logprobs, res.Err = s.Draw(&st, row)
	return res
}

// same compares, and says what differs.
func same(want modelrunner.SeqResult, got drawn) error {
	switch {
	case (want.Err == nil) != (got.Err == nil) || want.Err != nil && want.Err.Error() != got.Err.Error():
		return fmt.Errorf("error %q, want %q", fmt.Sprint(got.Err), fmt.Sprint(want.Err))
	case want.Err == nil && want.Token != got.Token:
		return fmt.Errorf("token %d, want %d", got.Token, want.Token)
	case len(want.PromptLogprobs) != len(got.PromptLogprobs):
		return fmt.Errorf("%d prompt logprobs, want %d", len(got.PromptLogprobs), len(want.PromptLogprobs))
	}
	w, g := want.Logprobs, got.Logprobs
	if len(want.PromptLogprobs) > 0 {
		w, g = want.PromptLogprobs[0], got.PromptLogprobs[0]
	}
	if len(w) != len(g) {
		return fmt.Errorf("%d logprobs, want %d", len(g), len(w))
	}
	for i := range w {
		d := math.Abs(float64(w[i].Logprob) - float64(g[i].Logprob))
		if w[i].Token != g[i].Token || w[i].Rank != g[i].Rank || !(d < 1e-5) && w[i].Logprob != g[i].Logprob {
			return fmt.Errorf("logprob %d is %+v, want %+v", i, g[i], w[i])
		}
	}
	return nil
}

// rowKinds are shapes of logits; strange ones may be handed back to the host.
var rowKinds = []struct {
	name    string
	strange bool
	make    func(n int, rng *rand.Rand) []float32
}{
	{"normal", false, func(n int, rng *rand.Rand) []float32 {
		return fill(n, func(int) float64 { return 3 * rng.NormFloat64() })
	}},
	{"flat", false, func(n int, rng *rand.Rand) []float32 {
		return fill(n, func(int) float64 { return 0.2 * rng.NormFloat64() })
	}},
	{"like a language model's", false, func(n int, rng *rand.Rand) []float32 {
		return fill(n, func(int) float64 { return 12 + 2.5*math.Log(rng.Float64()) - 8*rng.Float64() })
	}},
	{"ties everywhere", false, func(n int, rng *rand.Rand) []float32 {
		return fill(n, func(int) float64 { return math.Round(2 * rng.NormFloat64()) })
	}},
	{"all equal", false, func(n int, rng *rand.Rand) []float32 { return fill(n, func(int) float64 { return -1.25 }) }},
	{"zeros of both signs", false, func(n int, rng *rand.Rand) []float32 {
		return fill(n, func(i int) float64 { return math.Copysign(0, float64(i%3-1)) })
	}},
	{"one far above", false, func(n int, rng *rand.Rand) []float32 {
		top := rng.IntN(n)
		return fill(n, func(i int) float64 {
			if i == top {
				return 300
			}
			return 3 * rng.NormFloat64()
		})
	}},
	{"wide", false, func(n int, rng *rand.Rand) []float32 {
		return fill(n, func(int) float64 { return 1e6 * rng.NormFloat64() })
	}},
	{"mostly -Inf", true, func(n int, rng *rand.Rand) []float32 {
		return fill(n, func(i int) float64 {
			if i%7 != 3 {
				return math.Inf(-1)
			}
			return 3 * rng.NormFloat64()
		})
	}},
	{"some NaN", false, func(n int, rng *rand.Rand) []float32 {
		return fill(n, func(i int) float64 {
			if i%97 == 5 {
				return math.NaN()
			}
			return 3 * rng.NormFloat64()
		})
	}},
	{"all NaN", true, func(n int, rng *rand.Rand) []float32 {
		return fill(n, func(int) float64 { return math.NaN() })
	}},
	{"all -Inf", true, func(n int, rng *rand.Rand) []float32 {
		return fill(n, func(int) float64 { return math.Inf(-1) })
	}},
	{"two +Inf", true, func(n int, rng *rand.Rand) []float32 {
		return fill(n, func(i int) float64 {
			if i == n/3 || i == n/2 {
				return math.Inf(1)
			}
			return rng.NormFloat64()
		})
	}},
	{"the largest floats", true, func(n int, rng *rand.Rand) []float32 {
		return fill(n, func(i int) float64 { return math.MaxFloat32 * (rng.Float64()*2 - 1) })
	}},
}

func fill(n int, f func(i int) float64) []float32 {
	row := make([]float32, n)
	for i := range row {
		row[i] = float32(f(i))
	}
	return row
}

// siftParams are the parameters of the table; ids are made to fit a vocabulary.
func siftParams(vocab int) []sample.Params {
	id := func(i int) int32 { return int32(i % vocab) }
	p := []sample.Params{
		{Temperature: 1, TopK: 50},
		{Temperature: 1, TopP: 0.9},
		{Temperature: 0.7, TopK: 50, TopP: 0.9},
		{Temperature: 1, MinP: 0.05},
		{Temperature: 1.3, TopK: 40, TopP: 0.95, MinP: 0.02},
		{Temperature: 1, TopK: 2},
		{Temperature: 1, TopK: 1},
		{Temperature: 2, TopK: 300},                        // the host's selection, not its heap
		{Temperature: 1, TopK: max(2, vocab/2), TopP: 0.5}, // both borders deep in the row
		{Temperature: 1, TopK: vocab, TopP: 1},             // off
		{Temperature: 1, TopK: vocab + 5, TopP: 0.6},       // top-k off
		{Temperature: 1, TopP: 1e-9},                       // the most likely alone
		{Temperature: 1, TopP: 0.999999},                   // almost all
		{Temperature: 1, TopP: 0.5},                        // exact among equals
		{Temperature: 0.01, TopK: 20, TopP: 0.9},           // far apart
		{Temperature: 50, TopP: 0.8},                       // close together
		{Temperature: 1, MinP: 1},                          // only the best and its equals
		{Temperature: 3, TopK: 1000, TopP: 0.99, MinP: 1e-6},
		{Logprobs: 1},                 // greedy
		{Temperature: 1, Logprobs: 1}, // a draw from all
		{Temperature: 1, TopK: 50, TopP: 0.9, Logprobs: 6},
		{Temperature: 1, Logprobs: sample.MostLikely + 1}, // as many as there is room for
		{RepetitionPenalty: 1.3},
		{Temperature: 1, RepetitionPenalty: 0.8, Logprobs: 3},
		{Temperature: 1, FrequencyPenalty: 0.7},
		{Temperature: 0.9, PresencePenalty: -0.4, TopP: 0.9},
		{Temperature: 1, TopK: 30, RepetitionPenalty: 1.1, FrequencyPenalty: 0.2, PresencePenalty: 0.3, Logprobs: 6},
		{Temperature: 1, LogitBias: map[int32]float32{
			id(3): 5, id(11): -200, id(12): 100, id(vocab - 1): 4,
			int32(vocab): 50,
		}, TopP: 0.9},
		{Temperature: 1, LogitBias: map[int32]float32{id(2): 7}, Logprobs: 4},
		{Temperature: 1, Allowed: []int32{id(5), id(17), id(1), id(vocab - 1), id(5)}, Logprobs: 3},
		{Temperature: 1, Allowed: []int32{id(4), id(9)}, TopK: 3, TopP: 0.7, MinP: 0.01},
		{Allowed: []int32{int32(vocab), -1}}, // nothing is left
		{Allowed: []int32{}, Temperature: 1},
		{
			Temperature: 1, MinTokens: 100, StopIDs: []int32{id(0), id(7)},
			BadWords: [][]int32{{id(8)}, {id(1), id(9)}, {id(2), id(10)}},
		},
		{Temperature: 1, NoRepeatNGram: 2, TopK: 10},
		{Temperature: 1, NoRepeatNGram: 1, RepetitionPenalty: 2, TopP: 0.9, Logprobs: 2},
		{Temperature: 1, TopK: 30, Logprobs: 5, LogprobsMode: sample.Mode{Logits: true}}, // the host's from here
		{Temperature: 1, TopK: 30, TopP: 0.9, Logprobs: 5, LogprobsMode: sample.Mode{Processed: true}},
		{Temperature: 1, MinP: 0.1, Logprobs: 5, LogprobsMode: sample.Mode{Processed: true, Logits: true}},
	}
	for i := range p {
		p[i].Logprobs--
	}
	return p
}

// siftDrawings are random rows for every parameter.
func siftDrawings(vocab, rounds int, seed uint64) (all []drawing) {
	rng := rand.New(rand.NewPCG(seed, uint64(vocab)))
	for range rounds {
		for i, p := range siftParams(vocab) {
			p.Seed = rng.Uint64()
			kind := rowKinds[rng.IntN(len(rowKinds))]
			st := &sample.State{Params: p}
			for range rng.IntN(60) {
				st.Prompt = append(st.Prompt, int32(rng.IntN(min(vocab, 40))))
			}
			for range rng.IntN(60) {
				st.Output = append(st.Output, int32(rng.IntN(min(vocab, 40))))
			}
			st.Output = append(st.Output, int32(1%vocab))
			d := drawing{row: kind.make(vocab, rng), state: st, strange: kind.strange || vocab <= 3 || p.HostOnly(vocab) != ""}
			if p.Logprobs >= 0 && rng.IntN(3) == 0 {
				d.prompt, d.target = true, int32(rng.IntN(vocab))
			}
			d.name = fmt.Sprintf("vocab %d, parameters %d, %s, prompt %v: %+v", vocab, i, kind.name, d.prompt, p)
			all = append(all, d)
		}
	}
	return all
}

// TestSiftAgainstHost draws on the device and on the host, row by row: the same tokens, errors,
// ranks; log-probabilities within 1e-5. Only rows without a token, or with infinite logits, are
// handed back to the host.
func TestSiftAgainstHost(t *testing.T) {
	gpu(t)
	for _, c := range []struct{ vocab, rounds int }{
		{1, 2},
		{2, 3},
		{97, 20},
		{1009, 60},
		{32000, 20},
		{128257, 10},
		{262145, 4},
	} {
		t.Run(fmt.Sprint(c.vocab), func(t *testing.T) {
			t.Parallel()
			r := openGPU(t, siftModel(t, c.vocab), Options{}, 4)
			n, wrong, back := compareDrawings(t, r, siftDrawings(c.vocab, c.rounds, 1))
			t.Logf("%d rows, %d handed back", n, back)
			for _, w := range wrong {
				t.Error(w)
			}
		})
	}
}

// TestSiftLongBorders: with room for four tokens in a list, the border is looked for in the whole
// row.
func TestSiftLongBorders(t *testing.T) {
	r := openGPU(t, siftModel(t, 5003), Options{}, 4)
	r.work.room = 4
	_, wrong, _ := compareDrawings(t, r, siftDrawings(5003, 10, 2))
	require.Empty(t, wrong)
}

// TestSiftFaultIsFound: a border that is one token off is noticed.
func TestSiftFaultIsFound(t *testing.T) {
	r := openGPU(t, siftModel(t, 1009), Options{}, 4)
	r.kernels.around = borderFault(r)
	_, wrong, _ := compareDrawings(t, r, siftDrawings(1009, 20, 1))
	require.NotEmpty(t, wrong)
	t.Logf("%d rows differ, the first: %s", len(wrong), wrong[0])
}

// borderFault takes the last token away from what each draw keeps.
func borderFault(r *Runner) func(name string, grid cuda.Dim, args []any, launch func() error) error {
	return func(name string, _ cuda.Dim, _ []any, launch func() error) error {
		if err := launch(); err != nil || name != "sift_cut" {
			return err
		}
		if err := r.stream.Synchronize(); err != nil {
			return err
		}
		var kept [16 * logitRows]byte
		if err := r.work.memory.CopyTo(kept[:], r.work.kept); err != nil {
			return err
		}
		for i := range logitRows {
			if last := binary.LittleEndian.Uint64(kept[16*i:]); last != math.MaxUint64 {
				binary.LittleEndian.PutUint64(kept[16*i:], last-1)
			}
		}
		return r.work.memory.CopyFrom(r.work.kept, kept[:])
	}
}

// compareDrawings draws in batches of all sizes, and says what differs from the host.
func compareDrawings(tb testing.TB, r *Runner, all []drawing) (n int, wrong []string, back int) {
	tb.Helper()
	want := make([]modelrunner.SeqResult, len(all))
	var wg sync.WaitGroup
	for part := range slices.Chunk(indices(len(all)), (len(all)+7)/8) {
		wg.Go(func() {
			var s sample.Sampler
			for _, i := range part {
				want[i] = drawOnHost(&s, all[i])
			}
		})
	}
	wg.Wait()
	for at, size := 0, 1; at < len(all); at, size = at+size, 1+(size*5+3)%logitRows {
		for i, got := range drawOn(tb, r, all[at:min(at+size, len(all))]) {
			d := all[at+i]
			err := same(want[at+i], got)
			if got.handedBack {
				back++
				if !d.strange && want[at+i].Err == nil {
					err = errors.New("handed back to the host")
				}
			}
			if err != nil {
				wrong = append(wrong, fmt.Sprintf("%s: %v", d.name, err))
			}
		}
	}
	return len(all), wrong, back
}

func indices(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// siftModel is a small checkpoint with this vocabulary.
func siftModel(tb testing.TB, vocab int) string {
	tb.Helper()
	return fixtures.Checkpoint(tb, fixtures.Spec{
		Vocab: vocab, Hidden: 16, Heads: 1, KVHeads: 1, HeadDim: 16,
		Intermediate: 16, Layers: 1, Tied: true,
	})
}
