// Package threads lists the threads of this process, and says which of them C code started and can
// end: those that the Go runtime does not know, to which C has given a name, that are not the CUDA
// driver's, and that are no pool which a library keeps until the process ends.
//
// A thread without a name of its own may be a helper of the C library. What is on its stack does not
// tell: glibc reuses the stacks of threads that have ended, with what these left there.
package threads

import "time"

// Thread is one thread.
type Thread struct {
	ID    int
	Start int64 // in clock ticks since boot: tells it from a later one with its number

	Left bool          // C code started it and can end it; what follows is only known of these
	Name string        // as the kernel knows it
	Code string        // the library that it runs, or the program
	Age  time.Duration // since it was started
}
