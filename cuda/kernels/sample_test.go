package kernels_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"

	"github.com/enginetest/enginetest/cuda"
)

var sampleTests = []kernelTest{
	{[]string{"race"}, testRace, []wrong{set("another vocabulary", 5, 1008)}},
	{[]string{"winner"}, testWinner, []wrong{set("one share fewer", 2, 4)}},
}

// draw is how a row is drawn; temperature 0 is greedy.
type draw struct {
	seed        uint64
	temperature float32
	position    uint32
}

func (d draw) bytes() []byte {
	b := binary.LittleEndian.AppendUint64(nil, d.seed)
	b = binary.LittleEndian.AppendUint32(b, math.Float32bits(d.temperature))
	return binary.LittleEndian.AppendUint32(b, d.position)
}

// gumbel is the noise of a token, as engine/internal/sample defines it: -ln(-ln(u)) of
// Philox4x32-10.
func (d draw) gumbel(token int) float64 {
	c, k := [4]uint32{uint32(token / 4), d.position}, [2]uint32{uint32(d.seed), uint32(d.seed >> 32)}
	for range 10 {
		h0, l0 := bits.Mul32(0xD2511F53, c[0])
		h1, l1 := bits.Mul32(0xCD9E8D57, c[2])
		c = [4]uint32{h1 ^ c[1] ^ k[0], l1, h0 ^ c[3] ^ k[1], l0}
		k[0], k[1] = k[0]+0x9E3779B9, k[1]+0xBB67AE85
	}
	return -math.Log(-math.Log((float64(c[token%4]) + 0.5) / (1 << 32)))
}

// score is what the token with the largest one wins with.
func (d draw) score(logit float64, token int) float64 {
	if d.temperature == 0 || !(logit > math.Inf(-1)) {
		return logit
	}
	return float64(float32(logit)/d.temperature) + d.gumbel(token)
}

// testRace: the best of each share has the score that its token has, the best of all shares is the
// best of the row, and it is the token.
func testRace(k *kernel) {
	for _, c := range []struct{ vocab, shares, rows int }{{1009, 3, 6}, {5, 4, 3}, {40000, 8, 3}, {1, 1, 2}} {
		k.run(fmt.Sprintf("%+v", c), func(r *run) {
			_, logits := r.floats32("unused", c.rows, c.vocab, 3)
			var all []byte
			draws := make([]draw, c.rows)
			for i := range draws {
				if i%3 > 0 {
					draws[i] = draw{r.Uint64(), float32(0.3 + r.Float64()), r.Uint32N(5000)}
				}
				all = append(all, draws[i].bytes()...)
			}
			if c.rows > 5 { // tokens that cannot be drawn, and a row of nothing else
				for j := range logits.row(4) {
					if j%3 > 0 {
						logits.row(4)[j] = math.Inf(-1)
					}
					logits.row(5)[j] = math.Inf(-1)
				}
			}
			// poison is -1, which is an answer
			best, tokens := r.out("best", 16*c.rows*c.shares), r.in("tokens", words(make([]int, c.rows)...))
			done := r.in("done", words(make([]int, c.rows)...))
			r.launch("race", cuda.Dim{X: c.shares, Y: c.rows}, 256, 0, r.in("logits", floats(logits.v)),
				r.in("draws", all), best, done, tokens, c.vocab)
			best.checked = true
			var picked []int
			for i, d := range draws {
				want, got, token := math.Inf(-1), math.Inf(-1), -1
				for j, x := range logits.row(i) {
					want = max(want, d.score(x, j))
				}
				for s := range c.shares {
					b := best.after[16*(i*c.shares+s):]
					score, id := math.Float64frombits(binary.LittleEndian.Uint64(b)), int(int32(binary.LittleEndian.Uint32(b[8:])))
					if id < -1 || id >= c.vocab || id < 0 && !math.IsInf(score, -1) {
						r.fault("row %d, share %d: token %d with score %g", i, s, id, score)
						continue
					}
					if id >= 0 {
						r.close(fmt.Sprintf("row %d, share %d, token %d", i, s, id), score,
							d.score(logits.row(i)[id], id))
					}
					if score > got || score == got && id < token {
						got, token = score, id
					}
				}
				picked = append(picked, token)
				r.close(fmt.Sprintf("row %d", i), got, want)
			}
			r.same(tokens, words(picked...))
		})
	}
}

// close compares two scores: float64, through two logarithms within a unit in the last place or
// two.
func (r *run) close(what string, got, want float64) {
	const tolerance = 16 * 0x1p-53
	if got == want {
		return
	}
	ratio := math.Abs(got-want) / max(math.Abs(want), 1)
	r.largest = max(r.largest, ratio/tolerance)
	if !(ratio <= tolerance) {
		r.fault("%s: the score is %.17g, want %.17g", what, got, want)
	}
}

// testWinner: the largest score, of equal ones the lowest token; -1 when there is none, -2 when a
// drawn score overflows.
func testWinner(k *kernel) {
	type best struct {
		score float64
		id    int
	}
	inf := math.Inf(1)
	for _, c := range []struct {
		why         string
		temperature float32
		rows        [][]best
		want        []int
	}{
		{"five shares", 0, [][]best{
			{{1, 9}, {2, 8}, {2, 5}, {-inf, -1}, {1.5, 7}},
			{{-3, 4}, {-4, 3}, {-9, 2}, {-1, 1}, {-9, 0}},
		}, []int{5, 1}},
		{"no token can be drawn", 0.7, [][]best{{{-inf, -1}, {-inf, -1}}}, []int{-1}},
		{"a score overflows", 0.7, [][]best{{{1, 2}, {inf, 7}}, {{1, 2}, {0, 7}}}, []int{-2, 2}},
		{"greedy, the largest logit is infinite", 0, [][]best{{{1, 2}, {inf, 7}}}, []int{7}},
		{"more shares than threads", 1.5, [][]best{append(make([]best, 299), best{3, 1})}, []int{1}},
	} {
		k.run(c.why, func(r *run) {
			var all, draws []byte
			for _, row := range c.rows {
				for _, b := range row {
					all = binary.LittleEndian.AppendUint64(all, math.Float64bits(b.score))
					all = append(all, words(b.id, 0)...)
				}
				draws = append(draws, draw{temperature: c.temperature}.bytes()...)
			}
			tokens := r.in("tokens", words(make([]int, len(c.rows))...)) // poison is -1, which is an answer
			r.launch("winner", cuda.Dim{X: len(c.rows)}, 256, 0, r.in("best", all), r.in("draws", draws),
				len(c.rows[0]), tokens)
			r.same(tokens, words(c.want...))
		})
	}
}
