// Package lookalikes has tests that look as if they leaked, and don't: each one lends an engine to
// a library as its users do, and takes it back. leakcheck must stay silent in all of them.
//
//	go run ./campaign
//
// runs them ten thousand times in many modes and prints the alarms, of which there must be none.
package lookalikes
