package kernels_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/enginetest/enginetest/cuda"
)

// How whole draws compare with engine/internal/sample is tested in engine/internal/cudarunner; here
// each kernel is compared with sorting, in float64.
var siftTests = []kernelTest{
	{[]string{"sift_edit"}, testSift, []wrong{
		set("another vocabulary", 8, 1008),
		swap("edited rows for raw ones", 0, 1),
	}},
	{[]string{"sift_weigh"}, testSift, []wrong{
		set("another vocabulary", 7, 1008),
		swap("edited rows for raw ones", 0, 1),
	}},
	{[]string{"sift_list"}, testSift, []wrong{
		set("another vocabulary", 8, 1008), set("no room", 7, 1),
		swap("edited rows for raw ones", 0, 1),
	}},
	{[]string{"sift_cut"}, testSift, []wrong{set("one share", 5, 1), set("lists of another size", 9, 499)}},
	{[]string{"sift_race"}, testSift, []wrong{
		set("another vocabulary", 6, 1008),
		swap("edited rows for raw ones", 0, 1),
	}},
	{[]string{"sift_rank"}, testSift, []wrong{set("another vocabulary", 4, 1008)}},
}

// siftRow is a row with what is asked of it. Its reference is plain sorting.
type siftRow struct {
	draw
	topK, logprobs, target          int
	topP, minP                      float64
	repetition, frequency, presence float32
	edits                           [][2]uint32
	logits, edited                  []float32
}

const penalize, bias, mask = 0, 1 << 28, 2 << 28

// edit makes the edits in float32, as the kernel must.
func (s *siftRow) edit() {
	s.edited = slices.Clone(s.logits)
	for _, e := range s.edits { // every token once: the order does not matter
		x := &s.edited[e[0]&0xfffffff]
		switch e[0] &^ 0xfffffff {
		case bias:
			*x += math.Float32frombits(e[1])
		case mask:
			*x = float32(math.Inf(-1))
		default:
			if *x > 0 {
				*x /= s.repetition
			} else {
				*x *= s.repetition
			}
			if e[1] > 0 {
				*x -= float32(s.frequency*float32(e[1])) + s.presence
			}
		}
	}
}

// token is one of a row, in order.
type token struct {
	z    float32
	id   int
	mass float64
}

// sorted are the tokens of a row, the most likely first; with min_p, those that it leaves.
func sorted(row []float32, temperature float32, minP float64) (all []token, sum float64) {
	for id, x := range row {
		if z := x / temperature; z > float32(math.Inf(-1)) {
			all = append(all, token{z: z, id: id})
		}
	}
	slices.SortFunc(all, func(a, b token) int {
		if a.z != b.z {
			return int(math.Copysign(1, float64(b.z-a.z)))
		}
		return a.id - b.id
	})
	for i := range all {
		all[i].mass = math.Exp(float64(all[i].z - all[0].z))
	}
	all = slices.DeleteFunc(all, func(t token) bool { return t.mass < minP })
	for _, t := range all {
		sum += t.mass
	}
	return all, sum
}

// kept are the tokens that a draw leaves, the most likely first.
func (s *siftRow) kept() []token {
	all, _ := sorted(s.edited, s.temperature, s.minP)
	if s.topK > 0 && s.topK < len(all) {
		n := s.topK
		for n < len(all) && all[n].z == all[n-1].z {
			n++
		}
		all = all[:n]
	}
	sum, target := 0.0, 0.0
	for _, t := range all {
		target += s.topP * t.mass
	}
	for i, t := range all {
		if sum += t.mass; s.topP > 0 && sum >= target {
			return all[:i+1]
		}
	}
	return all
}

// rule is the row's, as the kernels read it.
func (s *siftRow) rule(edits int) []byte {
	b := words(edits, len(s.edits), s.topK, s.logprobs+1, s.target, 0)
	for _, f := range []float32{s.repetition, s.frequency, s.presence, 0} {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	for _, f := range []float64{s.topP, s.minP} {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(f))
	}
	return b
}

// sifting is what the kernels of a step share: they run one after the other, up to the one under
// test, whose output is compared.
type sifting struct {
	*run
	rows                                                          []siftRow
	edited, tops, bins, borders, lists, kept, best, found, tokens *buffer
	vocab, shares, room                                           int
}

const siftBins = 1024

func testSift(k *kernel) {
	for _, c := range []struct{ vocab, shares, room int }{{1009, 3, 500}, {7, 2, 7}, {10007, 8, 8192}, {5003, 8, 4}} {
		k.run(fmt.Sprintf("%+v", c), func(r *run) {
			s := &sifting{run: r, vocab: c.vocab, shares: c.shares, room: c.room}
			border := max(2, min(20, c.vocab/2))
			s.rows = []siftRow{
				{draw: draw{temperature: 0.7}, topK: border, logprobs: 3, target: -1},
				{draw: draw{temperature: 1.3}, topP: 0.7, logprobs: -1},
				{draw: draw{temperature: 1}, logprobs: -1},
				{draw: draw{temperature: 2}, topK: 2 * border, topP: 0.8, minP: 0.01, logprobs: 0, target: c.vocab / 2},
				{logprobs: 5, target: -1},
			}
			s.step(k.name)
		})
	}
}

// step fills the rows, launches and compares.
func (s *sifting) step(last string) {
	r, n := s.run, len(s.rows)
	var logits, rules, draws, edits []byte
	for i := range s.rows {
		row := &s.rows[i]
		row.seed, row.position = r.Uint64(), r.Uint32N(5000)
		row.logits = float32s(r, s.vocab)
		for j := range row.logits {
			row.logits[j] *= 3
		}
		row.repetition, row.frequency, row.presence = 1.2, 0.3, 0.2
		if i%2 == 0 && i != 2 {
			for id := range s.vocab {
				switch {
				case id%5 == 1:
					row.edits = append(row.edits, [2]uint32{uint32(id) | penalize, uint32(id % 4)})
				case id%7 == 0:
					row.edits = append(row.edits, [2]uint32{uint32(id) | mask, 0})
				case id%11 == 2:
					row.edits = append(row.edits, [2]uint32{uint32(id) | bias, math.Float32bits(0.5)})
				}
			}
		}
		row.edit()
		logits, draws = append(logits, bytesOf(row.logits)...), append(draws, row.bytes()...)
		rules = append(rules, row.rule(len(edits)/8)...)
		for _, e := range row.edits {
			edits = append(edits, words(int(e[0]), int(e[1]))...)
		}
	}
	l, ru, d, e := r.in("logits", logits), r.in("rules", rules), r.in("draws", draws), r.in("edits", edits)
	chosen := make([]int, n)
	for i := range chosen {
		chosen[i] = s.vocab - 1 - i
	}
	s.tokens = r.in("tokens", words(chosen...))
	s.edited, s.tops, s.bins = r.out("edited", len(logits)), r.out("tops", 8*n*s.shares), r.out("bins", 2*n*12*siftBins)
	s.borders, s.lists, s.kept = r.out("borders", 48*n), r.out("lists", 2*n*8*s.room), r.out("kept", 16*n)
	s.best, s.found = r.out("best", 16*n*s.shares), r.out("found", 280*n)
	for _, b := range []*buffer{s.edited, s.tops, s.bins, s.borders, s.lists, s.kept, s.best, s.found} {
		b.scratch()
	}
	row, job := cuda.Dim{X: s.shares, Y: n}, cuda.Dim{X: s.shares, Y: 2 * n}
	for _, k := range []struct {
		name  string
		grid  cuda.Dim
		args  []any
		check func()
	}{
		{"sift_edit", row, []any{l, s.edited, ru, e, s.tops, s.bins, s.borders, s.found, s.vocab}, s.checkEdit},
		{"sift_weigh", job, []any{l, s.edited, ru, d, s.tops, s.bins, s.borders, s.vocab}, s.checkWeigh},
		{"sift_list", job, []any{l, s.edited, ru, d, s.tops, s.borders, s.lists, s.room, s.vocab}, s.checkList},
		{"sift_cut", cuda.Dim{X: 2 * n}, []any{
			l, s.edited, ru, d, s.tops, s.shares, s.bins, s.borders, s.lists, s.room,
			s.kept, s.found, s.vocab,
		}, s.checkCut},
		{"sift_race", row, []any{l, s.edited, ru, d, s.kept, s.best, s.vocab}, s.checkRace},
		{"sift_rank", row, []any{l, ru, s.tokens, s.found, s.vocab}, s.checkRank},
	} {
		r.launch(k.name, k.grid, 256, 0, k.args...)
		if k.name == last {
			k.check()
			return
		}
	}
}

// job is what is sifted of a row: 0 to draw, 1 for log-probabilities.
func (s *sifting) each(f func(i int, row *siftRow, view int, all []token, sum float64)) {
	for i := range s.rows {
		row := &s.rows[i]
		if row.topK > 0 || row.topP > 0 {
			all, sum := sorted(row.edited, row.temperature, row.minP)
			f(i, row, 0, all, sum)
		}
		if row.logprobs >= 0 {
			all, sum := sorted(row.logits, 1, 0)
			f(i, row, 1, all, sum)
		}
	}
}

func (s *sifting) word(b *buffer, i int) uint32 { return binary.LittleEndian.Uint32(b.after[4*i:]) }

func (s *sifting) checkEdit() {
	var want []byte
	for _, row := range s.rows {
		if len(row.edits) > 0 {
			want = append(want, bytesOf(row.edited)...)
		} else {
			want = append(want, poisoned(4*s.vocab)...)
		}
	}
	s.same(s.edited, want)
	s.each(func(i int, row *siftRow, view int, all []token, _ float64) {
		job, top := i+view*len(s.rows), float32(math.Inf(-1))
		for k := range s.shares {
			top = max(top, math.Float32frombits(s.word(s.tops, job*s.shares+k)))
		}
		if view == 0 {
			top /= row.temperature
		}
		if top != all[0].z {
			s.fault("row %d, view %d: the top is %g, want %g", i, view, top, all[0].z)
		}
		for at := range 3 * siftBins {
			if w := s.word(s.bins, job*3*siftBins+at); w != 0 {
				s.fault("row %d, view %d: word %d of the bins is %#x", i, view, at, w)
				return
			}
		}
		if w := s.word(s.borders, 6*job+4); w != 0 {
			s.fault("row %d, view %d: %d are listed already", i, view, w)
		}
	})
}

func (s *sifting) checkWeigh() {
	s.each(func(i int, row *siftRow, view int, all []token, sum float64) {
		bins := s.bins.after[(i+view*len(s.rows))*12*siftBins:]
		mass, count := 0.0, 0
		for b := range siftBins {
			mass += float64(binary.LittleEndian.Uint64(bins[8*b:])) / (1 << 44)
			count += int(binary.LittleEndian.Uint32(bins[8*siftBins+4*b:]))
		}
		if count != len(all) {
			s.fault("row %d, view %d: %d tokens are counted, want %d", i, view, count, len(all))
		}
		if (view == 1 || row.topP > 0) && !(math.Abs(mass-sum) < 1e-6*sum) {
			s.fault("row %d, view %d: the mass is %g, want %g", i, view, mass, sum)
		}
	})
}

// checkList: when they fit, the token on the border is among those that are listed, and all of
// those are candidates, once.
func (s *sifting) checkList() {
	fits := 0
	s.each(func(i int, row *siftRow, view int, all []token, _ float64) {
		job := i + view*len(s.rows)
		border := all[:min(len(all), max(row.logprobs, 0))]
		if view == 0 {
			border = row.kept()
		}
		if len(border) == 0 || len(border) == len(all) {
			return
		}
		n, seen := int(s.word(s.borders, 6*job+4)), map[int]bool{}
		if n == 0 && s.room < 100 {
			return // they do not fit
		}
		fits++
		if n > s.room {
			s.fault("row %d, view %d: %d listed, room for %d", i, view, n, s.room)
			return
		}
		for k := range n {
			z, id := math.Float32frombits(s.word(s.lists, 2*(job*s.room+k))), int(s.word(s.lists, 2*(job*s.room+k)+1))
			if seen[id] || !slices.ContainsFunc(all, func(t token) bool { return t.id == id && t.z == z }) {
				s.fault("row %d, view %d: token %d with %g is listed, twice or wrongly", i, view, id, z)
				return
			}
			seen[id] = true
		}
		if t := border[len(border)-1]; !seen[t.id] {
			s.fault("row %d, view %d: of %d listed tokens none is %d, where the border is", i, view, n, t.id)
		}
	})
	if fits == 0 && s.room >= 100 {
		s.fault("no list was compared")
	}
}

func (s *sifting) checkCut() {
	for i := range s.rows {
		row := &s.rows[i]
		last, want := binary.LittleEndian.Uint64(s.kept.after[16*i:]), uint64(math.MaxUint64)
		if row.topK > 0 || row.topP > 0 {
			kept := row.kept()
			t := kept[len(kept)-1]
			if want = orderOf(t.z)<<32 | uint64(t.id); row.topP == 0 {
				want |= math.MaxUint32
			}
		}
		if last != want {
			s.fault("row %d: the last key is %#x, want %#x", i, last, want)
		}
	}
	s.each(func(i int, row *siftRow, view int, all []token, sum float64) {
		if view == 0 {
			return
		}
		f := s.found.after[280*i:]
		if mass := float64(binary.LittleEndian.Uint64(f)) / (1 << 44); !(math.Abs(mass-sum) < 1e-6*sum) {
			s.fault("row %d: the sum is %g, want %g", i, mass, sum)
		}
		if n := int(int32(binary.LittleEndian.Uint32(f[20:]))); n != row.logprobs {
			s.fault("row %d: %d likely tokens, want %d", i, n, row.logprobs)
			return
		}
		for k := range row.logprobs {
			if z, id := math.Float32frombits(binary.LittleEndian.Uint32(f[24+8*k:])), int(binary.LittleEndian.Uint32(f[28+8*k:])); z != all[k].z || id != all[k].id {
				s.fault("row %d: likely %d is token %d with %g, want %d with %g", i, k, id, z, all[k].id, all[k].z)
			}
		}
	})
}

// orderOf is the upper half of a key.
func orderOf(z float32) uint64 {
	b := math.Float32bits(z)
	if z < 0 {
		return uint64(b)
	}
	return uint64(b ^ 0x7fffffff)
}

func (s *sifting) checkRace() {
	for i := range s.rows {
		row := &s.rows[i]
		want, winner := math.Inf(-1), -1
		if row.temperature == 0 {
			row.topK, row.topP = 0, 0
			for id, x := range row.edited {
				if float64(x) > want {
					want, winner = float64(x), id
				}
			}
		} else {
			for _, t := range row.kept() {
				if score := float64(t.z) + row.gumbel(t.id); score > want {
					want, winner = score, t.id
				}
			}
		}
		got, id := math.Inf(-1), -1
		for k := range s.shares {
			b := s.best.after[16*(i*s.shares+k):]
			if score := math.Float64frombits(binary.LittleEndian.Uint64(b)); score > got {
				got, id = score, int(int32(binary.LittleEndian.Uint32(b[8:])))
			}
		}
		if id != winner {
			s.fault("row %d: token %d wins, want %d", i, id, winner)
		}
		s.close(fmt.Sprintf("row %d", i), got, want)
	}
}

func (s *sifting) checkRank() {
	s.each(func(i int, row *siftRow, view int, all []token, _ float64) {
		if view == 0 {
			return
		}
		target := row.target
		if target < 0 {
			target = s.vocab - 1 - i // of tokens
		}
		rank := slices.IndexFunc(all, func(t token) bool { return t.id == target })
		f := s.found.after[280*i:]
		if chosen := math.Float32frombits(binary.LittleEndian.Uint32(f[12:])); chosen != row.logits[target] {
			s.fault("row %d: the logit of token %d is %g, want %g", i, target, chosen, row.logits[target])
		}
		if before := int(binary.LittleEndian.Uint32(f[16:])); rank >= row.logprobs && before != rank {
			s.fault("row %d: %d tokens before token %d, want %d", i, before, target, rank)
		}
	})
}
