package sample

import (
	"math"
	"math/bits"
)

// The draw is a Gumbel-max race, which picks token i with probability softmax(z)[i]:
//
//	r[i]  = Philox4x32-10(key = (lo(seed), hi(seed)), counter = (i/4, position, 0, 0))[i%4]
//	u[i]  = (r[i] + 0.5) / 2^32                      in (0, 1), exact in float64
//	token = argmax_i  z[i] - ln(-ln(u[i]))           in float64; the lowest id wins a tie
//
// with z the processed logits (float32, divided by the temperature), lo and hi the halves of the
// request's 64-bit seed, and position that of the token being drawn in prompt + output. A token's
// noise depends on nothing else: not on the batch, the device, the block table, a preemption, nor
// on which other tokens are masked. Philox: Salmon et al., "Parallel random numbers: as easy as 1,
// 2, 3", SC 2011.

// philox is Philox4x32 with ten rounds.
func philox(c [4]uint32, k [2]uint32) [4]uint32 {
	for range 10 {
		hi0, lo0 := bits.Mul32(0xD2511F53, c[0])
		hi1, lo1 := bits.Mul32(0xCD9E8D57, c[2])
		c = [4]uint32{hi1 ^ c[1] ^ k[0], lo1, hi0 ^ c[3] ^ k[1], lo0}
		k[0] += 0x9E3779B9
		k[1] += 0xBB67AE85
	}
	return c
}

// noise is the stream of one draw.
type noise struct {
	key      [2]uint32
	position uint32
}

func newNoise(seed uint64, position int) noise {
	return noise{key: [2]uint32{uint32(seed), uint32(seed >> 32)}, position: uint32(position)}
}

// four returns r of the tokens 4*group … 4*group+3.
func (n noise) four(group int) [4]uint32 {
	return philox([4]uint32{uint32(group), n.position, 0, 0}, n.key)
}

// gumbel is -ln(-ln(u)).
func gumbel(r uint32) float64 { return -math.Log(-math.Log((float64(r) + 0.5) / (1 << 32))) }

// maxGumbel bounds gumbel(r) for every r, from above: -ln(-ln(1 - 2^-33)) = 22.87….
const maxGumbel = 22.9

// gumbelBound is an upper bound of gumbel(r) without a logarithm: -ln(u) >= 1-u, and the leading
// ones of r bound 1-u from below.
func gumbelBound(r uint32) float64 {
	return math.Ln2 * float64(bits.LeadingZeros32(^r)+1)
}

// race is the state of one draw.
type race struct {
	noise
	best  float64
	token int32
}

func newRace(n noise) race { return race{noise: n, best: math.Inf(-1), token: -1} }

// enter lets one token run; most need no logarithm because they cannot win.
func (c *race) enter(id int32, z float64, r uint32) {
	if z+gumbelBound(r) < c.best {
		return
	}
	if score := z + gumbel(r); score > c.best || score == c.best && id < c.token {
		c.best, c.token = score, id
	}
}

// drawItems draws from a support; -1 when it is empty.
func drawItems(items []item, n noise) int32 {
	c := newRace(n)
	for _, t := range items {
		if float64(t.z)+maxGumbel >= c.best {
			c.enter(t.id, float64(t.z), n.four(int(t.id / 4))[t.id%4])
		}
	}
	return c.token
}

// drawRow draws from a whole row, whose most likely token is top; NaN and -Inf are never drawn.
func drawRow(row []float32, temperature float32, top int32, n noise) int32 {
	c := newRace(n)
	c.enter(top, float64(row[top]/temperature), n.four(int(top / 4))[top%4])
	for at := 0; at < len(row); at += 4 {
		group := row[at:min(at+4, len(row))]
		// one less than needed, for the rounding of x/temperature
		least := float32((c.best - maxGumbel - 1) * float64(temperature))
		run := false
		for _, x := range group {
			run = run || x >= least && x > negInf
		}
		if !run {
			continue
		}
		r := n.four(at / 4)
		for j, x := range group {
			if x >= least && x > negInf {
				c.enter(int32(at+j), float64(x/temperature), r[j])
			}
		}
	}
	return c.token
}

// argmax is the lowest id with the largest logit, and that logit; -1 when every logit is -Inf or
// NaN.
func argmax(row []float32) (int32, float32) {
	best, top := int32(-1), negInf
	for i, x := range row {
		if x > top {
			best, top = int32(i), x
		}
	}
	return best, top
}

// expNeg is e^x for x <= 0, within 2 units in the last place; 0 below -87. NaN gives 0.
func expNeg(x float32) float32 {
	if !(x > -87) {
		return 0
	}
	n := int32(x*math.Log2E - 0.5) // rounds to nearest: x <= 0
	f := float32(n)
	r := x - f*0.693359375 + f*2.12194440e-4
	p := float32(1.9875691500e-4)
	p = p*r + 1.3981999507e-3
	p = p*r + 8.3334519073e-3
	p = p*r + 4.1665795894e-2
	p = p*r + 1.6666665459e-1
	p = p*r + 5.0000001201e-1
	return (p*r*r + r + 1) * math.Float32frombits(uint32(n+127)<<23)
}
