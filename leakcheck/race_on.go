//go:build race || msan || asan

package leakcheck

// instrumented says that a sanitizer keeps books of its own, outside the Go heap, on all memory
// that the program touches.
const instrumented = true
