//go:build !race && !msan && !asan

package leakcheck

const instrumented = false
