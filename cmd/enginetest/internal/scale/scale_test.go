package scale

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every curve can be measured at its smallest sizes.
func TestRun(t *testing.T) {
	var said []string
	list, err := Run(t.Context(), Options{Repeat: 1, Max: 10}, func(s string) { said = append(said, s) })
	require.NoError(t, err)
	var names []string
	for _, c := range list {
		names = append(names, c.Name)
		for _, p := range c.Points {
			assert.Positive(t, p.Took, "%s of %d", c.Name, p.N)
		}
		assert.Contains(t, c.String(), "| "+c.Of+" | time | per unit |")
	}
	assert.Len(t, names, len(curves)-1, "a report of 100 tests is above the limit: %v", names)
	assert.Contains(t, said, "end of a family of processes: 10 processes")
}

// A quadratic cost is told from a proportional one, and a cost that has not begun to grow does not
// hide it.
func TestGrowth(t *testing.T) {
	curve := func(cost func(n int) int) Curve {
		c := Curve{Name: "x", Of: "things"}
		for _, n := range []int{1, 10, 100, 1000, 10000} {
			c.Points = append(c.Points, Point{n, time.Duration(cost(n))})
		}
		return c
	}
	assert.InDelta(t, 1, curve(func(n int) int { return 7 * n }).Growth(), 0.001)
	assert.InDelta(t, 0, curve(func(int) int { return 1000 }).Growth(), 0.001)
	quadratic := curve(func(n int) int { return 1_000_000 + n*n })
	assert.True(t, quadratic.Faster(), quadratic.Growth())
	assert.Contains(t, quadratic.String(), "FASTER")
	assert.False(t, curve(func(n int) int { return 1_000_000 + n }).Faster())
	assert.Zero(t, Curve{}.Growth())
}
