package conformance

import (
	"errors"

	"github.com/enginetest/enginetest/leakcheck"
	"github.com/enginetest/enginetest/llm"
)

// Lives of the growth property, and how many bytes of the Go heap each may leave.
const (
	lives, shortLives = 20, 8
	bytesPerLife      = 64 << 10
)

// nothingGrows starts and ends the engine many times. Memory outside the Go heap is not judged: in
// an engine's own process it moves with the C library and the race detector.
func nothingGrows(c *check) error {
	if err := c.alone(); err != nil {
		return err
	}
	n := lives
	if c.s.opts.short {
		n = shortLives
	}
	var errs error
	_, err := leakcheck.MeasureGrowth(c, n, func(int) {
		if errs != nil || c.Err() != nil {
			return
		}
		l, err := c.s.start(c, c.s.open)
		if err != nil {
			errs = err
			return
		}
		_, err = l.one(c, c.s.prompt(0, llm.SamplingParams{MaxTokens: 2}))
		errs = errors.Join(err, l.close())
	}, leakcheck.GrowthAllowed(bytesPerLife), leakcheck.Warmup(max(2,
		n/5)), leakcheck.Allow("growth of memory outside*", "it moves with the C library and the race detector"))
	c.notef("%d lives", n)
	return errors.Join(errs, err)
}
