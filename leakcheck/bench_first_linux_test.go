package leakcheck_test

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkFirst is what the first failure of a process costs beyond the patience of a second, in a
// child go test, beside the second one. Linking the companion is the children's processor time:
//
//	go test ./leakcheck -run '^$' -bench First -benchtime 3x
func BenchmarkFirst(b *testing.B) {
	b.Setenv("LEAKCHECK_FIRST", "1")
	sums := map[string]float64{}
	for b.Loop() {
		out := runOutside(b, "./first")["TestFirst"].Output
		for _, which := range []string{"first", "second"} {
			var beyond, own, children float64
			line := regexp.MustCompile(which + ` \S+ \S+ \S+`).FindString(out)
			_, err := fmt.Sscanf(line, which+" %f %f %f", &beyond, &own, &children)
			require.NoError(b, err, "%s", out)
			sums[which+"-s-beyond"] += beyond
			sums[which+"-cpu-s"] += own
			sums[which+"-children-cpu-s"] += children
		}
	}
	for name, sum := range sums {
		b.ReportMetric(sum/float64(b.N), name)
	}
}
