package sample

import (
	"cmp"
	"math"
	"slices"
)

// Logprobs returns the log-probabilities, over a whole row of logits, of one token and of the k
// most likely ones: best first, the token last when it is not among them (with its rank). Of equal
// logits the lowest id ranks first. k is at most the row's length; a target outside the row is left
// out. NaN counts as -Inf. A mode with logits has these in their place.
func (s *Sampler) Logprobs(row []float32, target int32, k int, mode Mode) []Logprob {
	value := orNegInf
	if !mode.Logits {
		norm := logSumExp(row)
		value = func(x float32) float32 { return logprob(x, norm) }
	}
	s.ids = mostLikely(s.ids[:0], row, min(k, len(row)), &s.support)
	out := make([]Logprob, 0, len(s.ids)+1)
	found := uint(target) >= uint(len(row))
	for i, id := range s.ids {
		out = append(out, Logprob{Token: id, Logprob: value(row[id]), Rank: i + 1})
		found = found || id == target
	}
	if !found {
		out = append(out, Logprob{Token: target, Logprob: value(row[target]), Rank: rank(row, target)})
	}
	return out
}

// logSumExp is ln Σ exp(x), the terms added in float64; -Inf for a row without a number, +Inf for
// one with a +Inf.
func logSumExp(row []float32) float64 {
	_, top := argmax(row)
	if math.IsInf(float64(top), 0) {
		return float64(top)
	}
	sum := 0.0
	for _, x := range row {
		sum += float64(expNeg(x - top))
	}
	return float64(top) + math.Log(sum)
}

func logprob(x float32, norm float64) float32 {
	switch {
	case math.IsInf(norm, 1) && math.IsInf(float64(x), 1):
		return 0
	case !(x > negInf) || math.IsInf(norm, 0):
		return negInf
	}
	return float32(float64(x) - norm)
}

// rank is 1 + the number of tokens that are more likely, or as likely with a lower id.
func rank(row []float32, id int32) int {
	n, x := 1, orNegInf(row[id])
	for i, y := range row {
		if y = orNegInf(y); y > x || y == x && int32(i) < id {
			n++
		}
	}
	return n
}

// orNegInf makes NaN -Inf.
func orNegInf(x float32) float32 {
	if x != x {
		return negInf
	}
	return x
}

// mostLikely appends the ids of the k largest logits, best first, equal ones by id.
func mostLikely(ids []int32, row []float32, k int, s *support) []int32 {
	if k <= 0 {
		return ids
	}
	floor := negInf
	if k <= heapLimit {
		floor = s.kthLargest(row, k)
	}
	for i, x := range row {
		if x >= floor || floor == negInf {
			ids = append(ids, int32(i))
		}
	}
	slices.SortFunc(ids, func(a, b int32) int {
		return cmp.Or(cmp.Compare(orNegInf(row[b]), orNegInf(row[a])), cmp.Compare(a, b))
	})
	return ids[:min(k, len(ids))]
}
