package leakcheck

import "time"

// stopwatch measures what a check has spent of its patience. The time in which this process waited
// for a processor does not count, as far as nine tenths of all: on a machine that is busy with other
// things, what is on its way out needs longer.
type stopwatch struct {
	start   time.Time
	starved time.Duration
}

func startWatch() stopwatch { return stopwatch{time.Now(), starved()} }

// spent is how much of the patience has passed.
func (s stopwatch) spent() time.Duration { return spent(time.Since(s.start), starved()-s.starved) }

func spent(passed, starved time.Duration) time.Duration {
	return max(passed/10, min(passed, passed-starved))
}
