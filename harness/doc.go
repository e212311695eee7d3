// Package harness is the fixture for any engine: it starts an inference engine for a test, drives
// it, tears it down, and proves that it is gone or names who keeps it.
//
//	r := harness.Start(t, openMyEngine) // func(context.Context) (*MyEngine, error)
//	got := r.GenerateGreedy("The lighthouse", 16)
//
// [Start] takes any engine that has two methods ([Engine]); [Open] does it without a test, and a
// [Pool] keeps engines warm between tests. The bundled engine is started by runner.New: this
// package links no engine. The methods of [Runner] are those of vLLM's VllmRunner; some need an
// engine with more methods ([Streamer], [Sleeper], …), and so do some checks ([Holder],
// [ProcessLister], [PartLister], [FaultReporter]). A whole test in a process of its own:
// forkproc.Run around it.
//
// Which one do I want?
//
//	runner.New, Start    an engine for one test; With binds its verbs to a subtest
//	Lease, runner.Pool   one engine for many tests, one after the other, reset in between
//	Open                 an engine without a test: TestMain, Ginkgo, a program
//	Fixture              what Open returns: the engine and the proof
//	Runner               a Fixture bound to a test, with verbs that fail it
//
// In t.Cleanup, or at [Runner.Stop], seven steps run under one deadline; each runs even when an
// earlier one failed:
//
//	shutdown       Shutdown returns, in time and without an error; injected faults have fired
//	holdings       the engine's own ledger is empty: else owner, bytes and the place of the allocation
//	processes      the processes that the engine named are gone: else they are named and killed
//	goroutines     those started on behalf of this fixture are gone, also under t.Parallel: else state, stack and creator
//	references     the engine and its parts are unreachable: else the shortest path from a root that keeps them
//	device memory  the engine's processes hold nothing more on any GPU, whatever others do: else who holds how much, and what was before
//	host           file descriptors, sockets, mappings, shared memory and children are as before: else each is named
//
// A start that fails half-way goes through the same steps. What a failure looks like:
//
//	harness: TestGenerate is not gone: 1 of 7 checks failed (teardown took 1.1s)
//	goroutines (after 1s; budget 4s):
//	    leakcheck: TestGenerate: 1 of 1 goroutine(s) still running 1s after the end: goroutine 34 [chan receive] in llm.(*Engine).poll llm/engine.go:88
//	        llm.(*Engine).poll llm/engine.go:88
//	        created by llm.Open llm/engine.go:41
//	        to accept: harness.Allow("goroutine: llm.(*Engine).poll created by llm.Open", "reason")
//	to reproduce: go test example.com/llm -run '^TestGenerate$' -count=1
package harness
