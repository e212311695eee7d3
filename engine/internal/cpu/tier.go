// Package cpu is the engine's CPU device: its memory, its threads and its kernels.
//
// Memory is mapped outside the Go heap and has owners ([Allocator]), so that an engine on a CPU can
// leak, and be caught leaking, exactly as one on a GPU. Threads are a [Pool]. Kernels work on
// float32 activations and on weights as they lie in a checkpoint (float32, bfloat16, float16,
// row-major [out, in]); they come in three tiers chosen at run time, see [Tier].
//
// Batch invariance: within a tier, the result for one row does not depend on what else is in the
// batch, on the number of threads, or on how a prompt was cut into chunks. Every output of a kernel
// has one reduction order, which tiles, panels and threads only share out.
//
// Kernels check the lengths of what they are given and panic with a message that begins with "cpu:"
// on a mismatch: it is a bug of the caller.
package cpu

import (
	"fmt"
	"os"
	"strings"
)

// TierEnv is the environment variable that chooses a tier: "generic", "avx2" or "avx512". Unset or
// empty: the best that the machine has.
const TierEnv = "ENGINETEST_CPU"

// Tier is a set of kernels for a kind of processor.
type Tier uint8

// The tiers, from the one that runs everywhere to the fastest.
const (
	Generic Tier = iota // plain Go
	AVX2                // amd64 with AVX2, FMA and F16C
	AVX512              // amd64 with AVX-512 F, BW, DQ and VL
)

var tierNames = [...]string{"generic", "avx2", "avx512"}

func (t Tier) String() string {
	if int(t) < len(tierNames) {
		return tierNames[t]
	}
	return fmt.Sprintf("Tier(%d)", uint8(t))
}

// TierError refuses a tier: its name is unknown, or this machine does not have it.
type TierError struct {
	Value string
	Best  Tier // what this machine has
	known bool
}

func (e *TierError) Error() string {
	if e.known {
		return fmt.Sprintf("cpu: tier %q needs instructions that this machine does not have; its best is %q (%s)",
			e.Value, e.Best, TierEnv)
	}
	return fmt.Sprintf("cpu: unknown tier %q; %s takes %s", e.Value, TierEnv, strings.Join(tierNames[:], ", "))
}

// Best is the fastest tier that this machine can run.
func Best() Tier { return bestTier() }

// Detect is the tier that [TierEnv] asks for, or [Best] when it asks for none. The error is a
// *[TierError].
func Detect() (Tier, error) {
	v := os.Getenv(TierEnv)
	if v == "" {
		return Best(), nil
	}
	for i, n := range tierNames {
		if v == n {
			return Tier(i), supported(Tier(i))
		}
	}
	return Generic, &TierError{Value: v, Best: Best()}
}

func supported(t Tier) error {
	if t > Best() {
		return &TierError{Value: t.String(), Best: Best(), known: int(t) < len(tierNames)}
	}
	return nil
}
