package sample

// Mode says which numbers of a row are reported. The zero value is raw log-probabilities.
type Mode struct {
	Processed bool // those that the token was drawn from; else the model's own
	Logits    bool // not normalized
}

// processed overwrites an edited row with what the last race chose among: logits divided by the
// temperature, and -Inf for every token that could not be drawn. A greedy row stays as it is.
func (s *Sampler) processed(p *Params, row []float32, token int32) {
	t := float32(p.Temperature)
	switch u := &s.support; {
	case p.Temperature < greedyBelow:
	case p.Greedy(), !u.whole && len(u.items) == 0:
		z := row[token] / t
		fill(row, negInf)
		row[token] = z
	case u.whole:
		for i := range row {
			row[i] /= t
		}
	default:
		fill(row, negInf)
		for _, it := range u.items {
			row[it.id] = it.z
		}
	}
}

func fill(row []float32, x float32) {
	for i := range row {
		row[i] = x
	}
}
