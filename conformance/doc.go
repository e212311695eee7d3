// Package conformance is a suite of properties that every inference engine should have, and that
// any engine can run against itself: an engine of your own in Go, a server, the bundled one.
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, openMyEngine) // func(context.Context) (*MyEngine, error), as for harness.Start
//	}
//
// Each property is a subtest with a name. One that fails says why it matters, shows the smallest
// requests with which it fails, what the engine answered and what it should have, and the command
// that repeats it.
//
// What an engine can do is discovered: from the interfaces of package harness that it implements,
// and from the requests that it refuses with [llm.ErrUnsupported]. What it lacks is listed at the
// end, and never skipped silently. An engine that ignores a parameter without refusing it fails,
// unless the test says so ([Without]). An engine that is meant to have something says so with
// [Claims]: then its absence is a failure.
//
// Answers are compared token by token, with bit-equal log-probabilities. An engine that does not
// promise this states the difference it allows ([Tolerance]).
package conformance
