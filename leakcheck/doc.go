// Package leakcheck proves that what a test started is gone, or says what is left and who keeps it:
// goroutines, references, device buffers, files, sockets, mappings, processes, and growth over many
// rounds. It works from the _test.go files of any module, with any engine; none of it needs a flag,
// a debugger or a tool. A check that passes costs about one garbage collection.
//
// The shortest use:
//
//	func TestEngine(t *testing.T) {
//		leaks := leakcheck.Guard(t)      // first: so it checks last
//		e := engine.Open(...)
//		leaks.Track("engine", e)         // weakly: e must be collectable when the test ends
//		t.Cleanup(e.Close)
//		...
//	}
//
// Every check has a core that takes a context and returns a [*Error] with one [Finding] a cause:
// [Ref.Released] and [Released] (references), [Scope.Gone] (goroutines), [Freed] (buffers),
// [HostState.Restored] (files, sockets, mappings, processes), [MeasureGrowth] (growth).
//
// # What it prints
//
// A reference. The path leads from a root to the tracked object: a global variable, a goroutine, a
// timer, a finalizer or a cleanup, then fields, keys, captured variables. Storage of slices and
// maps is part of the field: ".entries[17].req".
//
//	leakcheck: *llm.ModelRunner (tracked as "modelrunner/0") is still reachable after 1.2s (12 GCs); it keeps 7.0 GiB of device memory (owner weights)
//	    global  github.com/acme/llm.supportsKwargs  map[*llm.bound]bool
//	    └─ key  *llm.bound
//	       └─ .call  method value llm.(*ModelRunner).Forward-fm
//	          └─ receiver  *llm.ModelRunner
//	    a cache keyed by a method value keeps its receiver: key it by the method expression, or delete the entry in Close
//	    to accept: leakcheck.Allow("reference: global github.com/acme/llm.supportsKwargs → *llm.ModelRunner", "reason")
//
// A reference that a goroutine keeps:
//
//	goroutine  26 [chan receive] in llm.(*Loop).run llm/loop.go:32, created by llm.Start llm/loop.go:20
//	└─ local f  closure llm.Start.func1  (llm/loop.go:20)
//	   └─ captured b  *llm.Buffer
//	a goroutine that waits on a channel keeps all that it captured: close the channel or cancel its context in Close, and wait for it to end
//
// A goroutine, with its stack and its creator:
//
//	leakcheck: TestEngine: 2 of 2 goroutine(s) still running 1.0s after the end: goroutine 22 [chan receive] in llm.(*Group).heartbeat llm/group.go:135 and 1 like it
//
// A buffer:
//
//	leakcheck: 64.0 MiB of device memory not given back by owner kv_cache (1 allocations)
//	      64.0 MiB  kv_cache     GPU-0 (plain)
//
// The host:
//
//	leakcheck: child process 4194 runs, and is left running: llama-server --port 8080
//	leakcheck: fd 9 is open: socket: tcp 127.0.0.1:36777 listening
//	leakcheck: /dev/shm/kv-4194 is mapped (65536 KiB at 0x7f0000000000)
//
// Growth, with the table of all rounds, the allocation sites, and what keeps their objects:
//
//	leakcheck: Go heap: 4.0 MiB more with every round (5 rounds, 1 of them warm-up; confidence 99.2 %; allowed 16.0 KiB)
//
// # When it says less
//
// A name that cannot be known is not guessed: "object of 96 bytes at 0x1c262ae32040  (type
// unknown)", "a variable used by llm.Start", "stack slot +0x18 (not in the stack map: …)". When no
// heap dump can be taken or its format is not known, the finding stands and its note says why there
// is no path. See docs/leaks.md for what each check proves and what it cannot.
package leakcheck
