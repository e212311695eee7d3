// Package forkproc runs the body of a test in a process of its own: a crash, an exit, a poisoned
// CUDA context or leaked device memory ends with the child, and the parent never touches the
// device.
//
//	func TestGenerate(t *testing.T) {
//		forkproc.Run(t, func(t *testing.T) {
//			...
//		})
//	}
//
// The child is a second run of the same test binary. Its subtests are subtests of the parent, with
// their results, output, attributes and artifacts; its coverage counts; what it reads is an input
// of the test cache. It cannot outlive the parent, and what it starts cannot outlive it.
//
// What comes back: results, output, attributes and artifacts, and the value of Result. A variable
// that the body captures is a copy in another process: what the body assigns to it is lost.
//
// Without a *testing.T (Ginkgo, TestMain) and with another testing.TB (benchmarks, fuzz targets):
// Register a function and Call it, or Run it with the TB.
//
// What runs twice: the code above Run in the test and in the tests around it, package init and
// TestMain all run again in the child. That includes the cleanups that such code registers. Keep
// devices out of it; see Main, InChild and RequireNoCUDA.
//
// # What it prints
//
// A child that gives no result is a failure, whatever its exit code:
//
//	forkproc: TestExit: child (pid 4121, 7ms) exited with code 0 before the test finished (a C library called exit, or os.Exit(0)?)
//	    to repeat: go test example/llm -run '^TestExit$' -count=1
//	forkproc: TestLoad: child (pid 4121, 41s) was killed by SIGKILL, during "long_prompt"
//	    likely the kernel's OOM killer: the oom_kill counter of this cgroup rose from 3 to 4
//	forkproc: TestLoad: child (pid 4121, 9ms) crashed (exit code 2), during "culprit": panic: boom [recovered, repanicked]
//	forkproc: TestHang: child (pid 4121, 309ms) ran into its time limit of 300ms; its stacks are in the output
//	forkproc: TestNVML: child (pid 4121, 4ms) was ended by the dynamic linker (exit code 127): llm.test: symbol lookup error: llm.test: undefined symbol: nvmlShutdown
//
// What outlived the child is named, and ended or removed where it is certain whose it is:
//
//	forkproc: TestServe: child (pid 5745, passed) left behind:
//	    process 5752 (llama-server -m x.gguf), re-parented, listening on tcp 127.0.0.1:39763, killed now
//	    shared memory /dev/shm/psm_3f2a (1.0 MiB), made by process 5752 (llama-server -m x.gguf); to remove it: rm -r /dev/shm/psm_3f2a
//	    to accept: forkproc.Accept("llama-server", "/dev/shm/psm_3f2a")
//
// All messages, with what to do: docs/isolation.md.
//
// # Environment
//
// FORKPROC=inline runs bodies in the parent, as a debugger does. A child has FORKPROC_TEST, the
// full name of its test.
//
// # Other systems
//
// Everything above holds on Linux. Elsewhere a child has its own process group and is killed at its
// limit, but it outlives a parent that is killed, its strays and leftovers are not found, and
// NoCUDA says that it cannot know.
package forkproc
