package checkpoint

import (
	"math"
	"strconv"
)

// Rope says how positions turn into angles. Its inverse frequencies for i in [0, HeadDim/2) start
// from Theta^(−2i/HeadDim); the type "llama3" then stretches the long wavelengths (see
// [Rope.InvFreq]).
type Rope struct {
	Type  string // "default" or "llama3"
	Theta float64

	// Only for llama3.
	Factor               float64
	LowFreqFactor        float64
	HighFreqFactor       float64
	OriginalMaxPositions int
}

// rope reads rope_parameters (transformers 5), or rope_scaling and rope_theta (before). The newer
// form wins inside the object, rope_theta outside it fills in.
func (f *fields) rope(maxPos int) Rope {
	theta := f.number("rope_theta", 10000, 1e-6, 1e15)
	if f.number("partial_rotary_factor", 1, 0, 1) != 1 {
		f.fail("partial_rotary_factor", "not supported", string(f.raw["partial_rotary_factor"]), "1")
	}
	p := f.object("rope_scaling")
	if p == nil {
		p = f.object("rope_parameters")
	}
	if p == nil {
		return Rope{Type: "default", Theta: theta}
	}
	for _, nested := range []string{"full_attention", "sliding_attention"} {
		if p.has(nested) {
			p.fail(nested, "rotary embeddings that differ between layers are not supported", "",
				"one set for all layers")
			return Rope{}
		}
	}
	r := Rope{
		Type:  p.string("rope_type", p.string("type", "default")),
		Theta: p.number("rope_theta", theta, 1e-6, 1e15),
	}
	if p.number("partial_rotary_factor", 1, 0, 1) != 1 {
		p.fail("partial_rotary_factor", "not supported", string(p.raw["partial_rotary_factor"]), "1")
	}
	switch r.Type {
	case "default":
	case "llama3":
		p.llama3(&r, maxPos)
	default:
		p.fail("rope_type", "unknown rope type", strconv.Quote(clip(r.Type)), `"default" or "llama3"`)
	}
	return r
}

func (f *fields) llama3(r *Rope, maxPos int) {
	for _, key := range []string{"factor", "low_freq_factor", "high_freq_factor"} {
		if !f.has(key) {
			f.fail(key, "missing", "", `a number: rope type "llama3" needs it`)
			return
		}
	}
	r.Factor = f.number("factor", 1, 1, 1e6)
	r.LowFreqFactor = f.number("low_freq_factor", 1, 1e-6, 1e6)
	r.HighFreqFactor = f.number("high_freq_factor", 1, 1e-6, 1e6)
	r.OriginalMaxPositions = f.integer("original_max_position_embeddings", maxPos, 1, maxPositions)
	if r.HighFreqFactor <= r.LowFreqFactor {
		f.fail("high_freq_factor", "not above low_freq_factor", string(f.raw["high_freq_factor"]),
			"more than "+string(f.raw["low_freq_factor"]))
	}
}

// InvFreq returns the headDim/2 inverse frequencies: position p turns pair i by p*InvFreq[i]
// radians. They are float32, rounded where transformers rounds: at position 300 one unit in the
// last place already shows in the logits. Formula: transformers, modeling_rope_utils.py,
// _compute_llama3_parameters.
func (r Rope) InvFreq(headDim int) []float64 {
	freqs := make([]float64, headDim/2)
	for i := range freqs {
		freqs[i] = float64(r.scale(1 / float32(math.Pow(r.Theta, float64(float32(2*i)/float32(headDim))))))
	}
	return freqs
}

func (r Rope) scale(freq float32) float32 {
	if r.Type != "llama3" {
		return freq
	}
	low, high, factor := float32(r.LowFreqFactor), float32(r.HighFreqFactor), float32(r.Factor)
	wavelength := float32(2*math.Pi) / freq
	turns := float32(r.OriginalMaxPositions) / wavelength // over the original context
	switch {
	case turns > high:
		return freq
	case turns < low:
		return freq / factor
	}
	smooth := (turns - low) / (high - low)
	return (1-smooth)*freq/factor + smooth*freq
}
