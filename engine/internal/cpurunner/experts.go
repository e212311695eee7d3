package cpurunner

import (
	"math"

	"github.com/enginetest/enginetest/engine/internal/cpu"
	"github.com/enginetest/enginetest/internal/checkpoint"
)

// choice is an expert that a row takes, and the weight of its result.
type choice struct {
	row    int
	weight float32
}

// mixture sets n rows of sum to the weighted results of the experts that each row of h takes. Rows
// that take the same expert are multiplied together; a row adds its experts in their order, so that
// its bits do not depend on its batch. sum may be h.
func (r *Runner) mixture(sum, h []float32, l *layer, n int) {
	w, d, size := &r.work, r.HiddenSize, r.ExpertSize
	logits := w.router[:n*r.NumExperts]
	cpu.MatMuls(r.pool, h, n, l.linear[checkpoint.Router].into(logits))
	rows := r.route(logits, n)
	mixed := w.mixed[:n*d]
	clear(mixed)
	for i := range l.experts {
		e, m := &l.experts[i], len(rows[i])
		if m == 0 {
			continue
		}
		x, gate, up := w.expert[:m*d], w.gate[:m*size], w.up[:m*size]
		for j, c := range rows[i] {
			copy(x[j*d:(j+1)*d], h[c.row*d:])
		}
		cpu.MatMuls(r.pool, x, m, e.gate.into(gate), e.up.into(up))
		r.activate(gate, up)
		cpu.MatMul(r.pool, x, gate, m, e.down.w, nil)
		for j, c := range rows[i] {
			to := mixed[c.row*d : (c.row+1)*d]
			for k, v := range x[j*d : (j+1)*d] {
				to[k] += c.weight * v
			}
		}
	}
	copy(sum, mixed)
}

// route returns the rows that take each expert: a row takes those with the largest logits, the
// first of equals, with the softmax over all experts as weights.
func (r *Runner) route(logits []float32, n int) [][]choice {
	rows := make([][]choice, r.NumExperts)
	taken := make([]int, r.ExpertsPerToken)
	for row := range n {
		x := logits[row*r.NumExperts : (row+1)*r.NumExperts]
		total, kept := softmax(x), float32(0)
		for i := range taken {
			taken[i] = largest(x, taken[:i])
			kept += x[taken[i]]
		}
		if r.NormExperts {
			total = kept
		}
		for _, e := range taken {
			rows[e] = append(rows[e], choice{row, x[e] / total})
		}
	}
	return rows
}

// softmax replaces x by the exponentials of its distances from the largest, and returns their sum.
func softmax(x []float32) (sum float32) {
	top := x[largest(x, nil)]
	for i, v := range x {
		x[i] = float32(math.Exp(float64(v - top)))
		sum += x[i]
	}
	return sum
}

// largest is the index of the largest element that is not among those in without.
func largest(x []float32, without []int) int {
	best := -1
search:
	for i, v := range x {
		for _, not := range without {
			if i == not {
				continue search
			}
		}
		if best < 0 || v > x[best] {
			best = i
		}
	}
	return best
}
