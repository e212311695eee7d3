package gpuwait

import "testing"

// NoGPUEvidence replaces the machine's root when GPUs are looked for.
func NoGPUEvidence(t *testing.T, root string) {
	old := machineRoot
	machineRoot = root
	t.Cleanup(func() { machineRoot = old })
}

// Hidden makes accounts believe that processes are hidden here for this reason; "" that none are.
func Hidden(t *testing.T, reason string) {
	old := hidingHere
	hidingHere = func([]Device) string { return reason }
	t.Cleanup(func() { hidingHere = old })
}

// Queued is how many Acquires of this process wait or look.
func Queued() int {
	inProcess.mu.Lock()
	defer inProcess.mu.Unlock()
	return len(inProcess.waiting)
}

// What the tests of this package compare with.
const (
	DefaultTimeout  = defaultTimeout
	DefaultPatience = defaultPatience

	LeaseDirEnv = leaseDirEnv
	LeasedEnv   = leasedEnv
	TestEnv     = testEnv

	Cleared      = endingCleared
	TimedOut     = endingTimeout
	Held         = endingHeld
	Cancelled    = endingCancelled
	Unmeasurable = endingUnmeasurable

	TrendClear   = trendClear
	TrendHeld    = trendHeld
	TrendFalling = trendFalling
	TrendRising  = trendRising
	TrendRefill  = trendRefill
	TrendUnowned = trendUnowned
	TrendUnknown = trendUnknown
)

// Owners lets a test have a list of owners of its own.
type Owners = owners

var (
	OwnedBy = ownedBy
	OpenAMD = openAMD // with a root of its own
)
