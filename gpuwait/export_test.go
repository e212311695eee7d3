package gpuwait

import "testing"

// WorldGPU and the like are in world_test.go; this file opens what tests of the package from outside need.

// NoGPUEvidence replaces the machine's root when GPUs are looked for.
func NoGPUEvidence(t *testing.T, root string) {
	old := machineRoot
	machineRoot = root
	t.Cleanup(func() { machineRoot = old })
}
