package sample

import "math"

// support is the tokens that can still be drawn, with their logits: the processors of this file
// thin it out. Its order means nothing.
type support struct {
	whole bool // it is the row itself, and items are not filled in
	items []item
	total float64   // the mass of all tokens, when gatherNucleus left some out; else 0
	heap  []float32 // scratch of kthLargest
}

// item is a token with its logit, and what a selection works with.
type item struct {
	id   int32
	z    float32
	key  float32 // selection order, smallest first, equal ones by id
	mass float32 // not normalized
}

// gather fills the support with the tokens of a row whose logit, divided by the temperature, is at
// least floor. NaN is never drawn; +Inf leaves nothing but the tokens that have it.
func (s *support) gather(row []float32, temperature, floor float32) {
	s.items, s.total, s.whole = s.items[:0], 0, false
	for i, x := range row {
		if z := x / temperature; z >= floor && z > negInf {
			s.items = append(s.items, item{id: int32(i), z: z})
		}
	}
	if _, top := argmax(row); math.IsInf(float64(top/temperature), 1) {
		s.keep(func(t item) bool { return math.IsInf(float64(t.z), 1) })
		for i := range s.items {
			s.items[i].z = 0
		}
	}
}

// gatherNucleus gathers for topP without the tail that cannot be kept: all tokens with less than
// (1-p)/len(row) of the probability have less than 1-p together. Of a large vocabulary few are
// left.
func (s *support) gatherNucleus(row []float32, temperature float32, top float32, p float64) {
	z, total := top/temperature, 0.0
	for _, x := range row {
		total += float64(expNeg(x/temperature - z))
	}
	floor := float64(z) + math.Log((1-p)*total/float64(len(row))) - 1e-3 // a little less, for rounding
	s.gather(row, temperature, float32(floor))
	s.total = total
}

// keep drops the items that f refuses.
func (s *support) keep(f func(item) bool) {
	kept := s.items[:0]
	for _, t := range s.items {
		if f(t) {
			kept = append(kept, t)
		}
	}
	s.items = kept
}

// top is the largest logit.
func (s *support) top() float32 {
	top := negInf
	for _, t := range s.items {
		top = max(top, t.z)
	}
	return top
}

// weigh sets the masses to exp(z - top) and returns their sum.
func (s *support) weigh() float64 {
	top, sum := s.top(), 0.0
	for i := range s.items {
		m := expNeg(s.items[i].z - top)
		s.items[i].mass = m
		sum += float64(m)
	}
	return sum
}

// topK keeps the tokens whose logit is at least the k-th largest: more than k when there are ties.
func (s *support) topK(k int) {
	if k <= 0 || k >= len(s.items) {
		return
	}
	for i := range s.items {
		s.items[i].key, s.items[i].mass = -s.items[i].z, 1
	}
	last := crossing(s.items, float64(k))
	s.keep(func(t item) bool { return t.z >= last.z })
}

// kthLargest is the k-th largest logit of a row, -Inf when there are fewer: one pass with a heap,
// for a k much smaller than the row.
func (s *support) kthLargest(row []float32, k int) float32 {
	h := s.heap[:0]
	for _, x := range row {
		switch {
		case len(h) == k && !(x > h[0]) || !(x > negInf):
		case len(h) < k:
			h = append(h, x)
			for i := len(h) - 1; i > 0 && h[i] < h[(i-1)/2]; i = (i - 1) / 2 {
				h[i], h[(i-1)/2] = h[(i-1)/2], h[i]
			}
		default:
			h[0] = x
			sink(h)
		}
	}
	s.heap = h
	if len(h) < k {
		return negInf
	}
	return h[0]
}

// sink restores a heap, smallest first, whose root is too large.
func sink(h []float32) {
	for i := 0; ; {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && h[c+1] < h[c] {
			c++
		}
		if h[i] <= h[c] {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}

// topP keeps the fewest most likely tokens that together have the probability p (nucleus sampling,
// arXiv:1904.09751); of equal tokens on the border those with the lowest ids.
func (s *support) topP(p float64) {
	if len(s.items) < 2 || p >= 1 {
		return
	}
	sum := max(s.weigh(), s.total)
	for i := range s.items {
		s.items[i].key = -s.items[i].z
	}
	last := crossing(s.items, p*sum)
	s.keep(func(t item) bool { return !last.before(t) })
}

// minP keeps the tokens at least p times as likely as the most likely one (arXiv:2407.01082).
func (s *support) minP(p float64) {
	top := s.top()
	s.keep(func(t item) bool { return t.z == top || float64(expNeg(t.z-top)) >= p })
}

// epsilon keeps the tokens with at least the probability e, and the most likely ones
// (arXiv:2210.15191).
func (s *support) epsilon(e float64) {
	sum, top := s.weigh(), s.top()
	s.keep(func(t item) bool { return t.z == top || float64(t.mass)/sum >= e })
}

// typicalP keeps the tokens whose surprise is closest to the entropy, until they have the
// probability p together (arXiv:2202.00666); all of those that are equally close on the border.
func (s *support) typicalP(p float64) {
	if len(s.items) < 2 || p >= 1 {
		return
	}
	sum, top := s.weigh(), s.top()
	norm, entropy := float32(math.Log(sum)), 0.0
	for _, t := range s.items {
		entropy -= float64(t.mass) / sum * float64(t.z-top-norm)
	}
	for i, t := range s.items {
		s.items[i].key = float32(math.Abs(float64(-(t.z - top - norm)) - float64(float32(entropy))))
	}
	last := crossing(s.items, p*sum)
	s.keep(func(t item) bool { return t.key <= last.key })
}

// before is the selection order.
func (t item) before(u item) bool { return t.key < u.key || t.key == u.key && t.id < u.id }

// crossing is the first item, in selection order, at which the mass of the items up to and with it
// reaches the target; the last item when none does. A quickselect that adds up masses: no sort,
// O(n) on average. It reorders the items.
func crossing(items []item, target float64) item {
	done, rng := 0.0, uint32(1)
	for len(items) > 16 {
		m, left := partition(items, &rng)
		pivot := items[m]
		switch {
		case m > 0 && done+left >= target:
			items = items[:m]
		case done+left+float64(pivot.mass) >= target || m == len(items)-1:
			return pivot
		default:
			done += left + float64(pivot.mass)
			items = items[m+1:]
		}
	}
	for i := range items { // insertion sort
		for j := i; j > 0 && items[j].before(items[j-1]); j-- {
			items[j], items[j-1] = items[j-1], items[j]
		}
	}
	for _, t := range items {
		if done += float64(t.mass); done >= target {
			return t
		}
	}
	return items[len(items)-1]
}

// partition moves what comes before a pivot to its left and returns the pivot's place and the mass
// to its left.
func partition(items []item, rng *uint32) (m int, left float64) {
	*rng = *rng*1664525 + 1013904223
	p, end := int(*rng>>8)%len(items), len(items)-1
	items[p], items[end] = items[end], items[p]
	pivot := items[end]
	for i := range items[:end] {
		if items[i].before(pivot) {
			left += float64(items[i].mass)
			items[i], items[m] = items[m], items[i]
			m++
		}
	}
	items[m], items[end] = items[end], items[m]
	return m, left
}
