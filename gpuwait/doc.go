// Package gpuwait measures who holds GPU memory, waits until it clears, and leases GPUs to tests:
// with any engine, in any process.
//
// [Open] returns the machine's [Source] (NVML, or AMD's sysfs), [Snapshot] reads it, [Clear] waits
// for a [Condition] and [ForClear] does so in a test. [Acquire] leases devices across the packages
// that go test runs side by side. [Inspect] lists all there is to know.
//
// A failure says what is held, against which bound, for how long it was watched, by whom, what its
// history suggests, which option would accept it and how to see it again:
//
//	gpuwait: GPU-1a2b (NVIDIA H200, index 0) still holds 63.1 GiB of 139.8 GiB (45%, want ≤ 14.0 GiB: 10% of total) after 30s (714 samples, last change 30s ago)
//	      56.0 GiB  pid 26825  llm.test -test.run=^TestLoad7B$  TestLoad7B  started 3m0s ago  ← left over from a test whose process is gone
//	       7.1 GiB  unattributed (the driver's reserve of 615.0 MiB is not counted; processes of other containers and users may not be visible)
//	    held: unchanged while its holders live: waiting longer will not help; end them, or find out why their owner did not
//	    stopped early: gpuwait.KeepWaiting() waits on, gpuwait.Patience(d) changes how long identical readings are watched
//	    to accept what is there: gpuwait.Delta(baseline, slack) or a larger bound; memory kept on purpose: gpuwait.Own(uuid, name, bytes)
//	    to reproduce: go test example.com/llm -run '^TestGenerate$' -count=1
//
// The line before the options is the [Trend]: held, falling (wait longer), rising and refilled
// (another process is at work), or held by no process (the driver reclaims, or the holder cannot be
// seen from here). Other messages:
//
//	gpuwait: GPU-1a2b (NVIDIA H200, index 0), 2s into the wait (last reading 63.0 GiB of 139.8 GiB used, 20ms before; 198 samples): NVML: cannot measure: device lost: …
//	gpuwait: cannot measure: no GPU found on linux/amd64; tried NVML: …; AMD: …
//	gpuwait: TestNext could not lease 1 of 2 devices in 4m50s
//	    GPU-1a2b (NVIDIA H200, index 0)  leased by pid 21293 (llm.test) TestLoad since 07:15:29 (5m2s)
//	    GPU-3c4d (NVIDIA H200, index 1)  only 3.0 GiB free of 139.8 GiB
//	    the test's own deadline is near (go test -timeout)
//
// What cannot be measured is an error that wraps [ErrCannotMeasure], never 0 and never a silent
// pass. docs/waiting.md says what each message asks for, what a wait proves, and what it cannot.
package gpuwait
