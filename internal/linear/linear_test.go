package linear

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/enginetest/enginetest/internal/faketb"
)

var sink int

// Quadratic work is told from linear work, in whatever company.
func TestCheck(t *testing.T) {
	work := func(times func(n int) int) func(t T) {
		return func(t T) {
			Check(t, 400, 3200, func(n int) func() {
				return func() {
					for i := range times(n) {
						sink += i
					}
				}
			})
		}
	}
	linear := work(func(n int) int { return 1000 * n })
	linear(t)
	quadratic := work(func(n int) int { return 3 * n * n })
	failures := faketb.Run(func(ft *faketb.T) { quadratic(ft) })
	assert.Len(t, failures, 1)
}
