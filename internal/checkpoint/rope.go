package checkpoint

import (
	"fmt"
	"math"
	"strconv"
)

// Rope says how positions turn into angles. Its inverse frequencies for i in [0, HeadDim/2) start
// from Theta^(−2i/HeadDim); the type "linear" then divides them by Factor, and "llama3" stretches
// the long wavelengths (see [Rope.InvFreq]).
type Rope struct {
	Type   string // "default", "linear" or "llama3"
	Theta  float64
	Factor float64 // not for default

	// Only for llama3.
	LowFreqFactor        float64
	HighFreqFactor       float64
	OriginalMaxPositions int
}

// ropes reads rope_parameters (transformers 5), or rope_scaling and rope_theta (before). The newer
// form wins inside the object, rope_theta outside it fills in. A class whose sliding layers have an
// embedding of their own nests one object per layer type, or has rope_local_base_freq (before).
func (f *fields) ropes(c *Config, a architecture) {
	f.wholeRotary()
	theta := 10000.0
	if a.ropeTheta > 0 {
		theta = a.ropeTheta
	}
	full := Rope{Type: "default", Theta: f.number("rope_theta", theta, 1e-6, 1e15)}
	local := Rope{Type: "default"}
	if a.localTheta > 0 {
		local.Theta = f.number("rope_local_base_freq", a.localTheta, 1e-6, 1e15)
		c.LocalRope = &local
	}
	p := f.object("rope_scaling")
	if p == nil {
		p = f.object("rope_parameters")
	}
	for _, nested := range []struct {
		key  string
		rope *Rope
	}{{"full_attention", &full}, {"sliding_attention", &local}} {
		switch {
		case p == nil || !p.has(nested.key):
			continue
		case a.localTheta == 0:
			p.fail(nested.key, "rotary embeddings that differ between layers are not supported", "",
				"one set for all layers")
			return
		}
		if in := p.object(nested.key); in != nil {
			in.rope(nested.rope, c.MaxPositions)
		}
	}
	if p != nil && !p.has("full_attention") && !p.has("sliding_attention") {
		p.rope(&full, c.MaxPositions)
	}
	c.Rope = full
}

// wholeRotary fails on embeddings that turn a part of each head.
func (f *fields) wholeRotary() {
	if f.number("partial_rotary_factor", 1, 0, 1) != 1 {
		f.fail("partial_rotary_factor", "not supported", string(f.raw["partial_rotary_factor"]), "1")
	}
}

// rope reads one object of parameters over the defaults in r.
func (f *fields) rope(r *Rope, maxPos int) {
	r.Type = f.string("rope_type", f.string("type", r.Type))
	r.Theta = f.number("rope_theta", r.Theta, 1e-6, 1e15)
	f.wholeRotary()
	switch r.Type {
	case "default":
	case "linear":
		f.needs(r.Type, "factor")
		r.Factor = f.number("factor", 1, 1, 1e6)
	case "llama3":
		f.llama3(r, maxPos)
	default:
		f.fail("rope_type", "unknown rope type", strconv.Quote(clip(r.Type)), `"default", "linear" or "llama3"`)
	}
}

// needs fails unless the keys are there.
func (f *fields) needs(ropeType string, keys ...string) {
	for _, key := range keys {
		if !f.has(key) {
			f.fail(key, "missing", "", fmt.Sprintf("a number: rope type %q needs it", ropeType))
		}
	}
}

func (f *fields) llama3(r *Rope, maxPos int) {
	f.needs(r.Type, "factor", "low_freq_factor", "high_freq_factor")
	if *f.err != nil {
		return
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
	switch r.Type {
	case "linear":
		return freq / float32(r.Factor)
	case "default":
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
