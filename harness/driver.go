package harness

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/enginetest/enginetest/leakcheck"
)

// driverKeeps is what the CUDA driver holds from its first use in a process to the end of that
// process; no call releases it (driver 580). Pipes, eventfds and epolls are the driver's only where
// that is proved: those of the engine look the same.
var driverKeeps = []string{
	"descriptor: /dev/nvidia*",
	"mapping: /dev/nvidia*",
	"socket: unix @cuda-uvmfd-*",
	"descriptor: * of the CUDA driver",
}

// acceptDriver accepts driverKeeps.
func acceptDriver() (list []leakcheck.Option) {
	for _, pattern := range driverKeeps {
		list = append(list, leakcheck.Allow(pattern, "the CUDA driver keeps it until the process ends"))
	}
	return list
}

// isDriver reports whether a finding is among driverKeeps.
func isDriver(f leakcheck.Finding) bool {
	return slices.ContainsFunc(driverKeeps, func(pattern string) bool {
		before, after, _ := strings.Cut(pattern, "*")
		return strings.HasPrefix(f.Signature, before) && strings.HasSuffix(f.Signature, after)
	})
}

// ofDriver counts what the driver holds now and did not hold at the baseline: "5 descriptors, 3
// mappings"; "" when that is nothing.
func (h *hostBaseline) ofDriver() string {
	if h.state == nil {
		return ""
	}
	now, err := leakcheck.Snapshot()
	if err != nil {
		return ""
	}
	count := map[leakcheck.Kind]int{}
	for _, f := range leakcheck.Diff(h.state, now) {
		if isDriver(f) {
			count[f.Kind]++
		}
	}
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(count)) {
		parts = append(parts, plural(count[kind], string(kind)))
	}
	return strings.Join(parts, ", ")
}

// plural returns "1 mapping", "2 mappings".
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
