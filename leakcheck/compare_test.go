package leakcheck

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// connector hands an engine's blocks to a store. The leaky one registers each request there and
// forgets some when it is shut down.
type connector struct {
	store map[int][]byte
	leaky bool
}

var transfers [][]byte

// connected is an engine's life with a connector; nil is one without.
func connected(c *connector) Arm {
	return func(round int, stage func(string)) {
		weights := make([]byte, 256<<10)
		if c != nil {
			c.store = map[int][]byte{}
		}
		stage("created")
		for r := range 8 {
			block := make([]byte, 32<<10+rand.IntN(8<<10))
			if c != nil {
				c.store[r] = block
			}
		}
		stage("used")
		if c != nil && c.leaky {
			transfers = append(transfers, c.store[0])
		}
		if c != nil {
			clear(c.store)
		}
		runtime.KeepAlive(weights)
	}
}

// TestCompare: what only the arm with a leaky connector leaves is found; a clean one holds more
// while it is used, and nothing at the end.
func TestCompare(t *testing.T) {
	defer func() { transfers = nil }()
	c, err := MeasureDifference(t.Context(), 10, connected(&connector{leaky: true}), connected(nil))
	require.ErrorContains(t, err, "Go heap: ")
	require.ErrorContains(t, err, "more is left with than without (10 rounds in turns; confidence 99.90 %")
	t.Log(err)
	used := c.Rows[0]
	for _, r := range c.Rows {
		if r.Stage == "used" && r.Measure == heapMeasure {
			used = r
		}
	}
	assert.Greater(t, used.More, 200e3, "eight blocks")
	assert.Equal(t, endStage, c.Rows[len(c.Rows)-1].Stage)

	_, err = MeasureDifference(t.Context(), 9, connected(nil), connected(nil))
	require.ErrorContains(t, err, "at least 10 are needed")
	Compare(t, 10, connected(&connector{}), connected(nil))
	if testing.Short() {
		return
	}
	_, err = MeasureDifference(t.Context(), 10, connected(&connector{leaky: true}), connected(nil),
		Allow("memory: difference of Go heap", "the connector of release 1 keeps one block"))
	require.NoError(t, err)
	// both leak alike: not the connector's fault
	Compare(t, 10, connected(&connector{leaky: true}), connected(&connector{leaky: true}))
}

func TestPairedConfidence(t *testing.T) {
	for _, row := range []struct {
		why  string
		d    []float64
		want float64
	}{
		{"all positive: one of 1024", []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 1 - 1.0/1024},
		{"the least negative: two of 1024", []float64{-1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 1 - 2.0/1024},
		{"all negative", []float64{-1, -2, -3}, 0},
		{"no difference", []float64{0, 0, 0, 0}, 0},
		{"one, two and three of three: sums of 5 or 6 are two of eight", []float64{-1, 2, 3}, 1 - 2.0/8},
	} {
		assert.InDelta(t, row.want, pairedConfidence(row.d), 1e-9, row.why)
	}
	r := rand.New(rand.NewPCG(1, 1))
	alarms := 0
	for range 20000 {
		d := make([]float64, 12)
		for i := range d {
			d[i] = r.NormFloat64()
		}
		if pairedConfidence(d) >= compareConfidence {
			alarms++
		}
	}
	assert.LessOrEqual(t, alarms, 30, "one in a thousand")
}
