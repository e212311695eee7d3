//go:build unix

package cpu

import (
	"os"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func fence(tb testing.TB, n int) []byte {
	tb.Helper()
	page := os.Getpagesize()
	size := (n + page - 1) / page * page
	mem, err := unix.Mmap(-1, 0, size+page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, unix.Munmap(mem)) })
	require.NoError(tb, unix.Mprotect(mem[size:], unix.PROT_NONE))
	return mem[size-n : size : size]
}

// The fence of the other tests does bite.
func TestFence(t *testing.T) {
	mem := fence(t, 100)
	past := unsafe.Slice(unsafe.SliceData(mem), 101)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	require.Panics(t, func() { t.Log(past[100]) })
}

func TestIdlePoolUsesNoProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4)) // as many as threads: they spin before they sleep
	p := pool(t, 4, Generic)
	p.Run(4, 1, func(int, int) {})
	for round := 0; ; round++ { // idle workers that spin do so in every round, the rest of the process in some
		used := processorTime(t)
		time.Sleep(200 * time.Millisecond)
		if used = processorTime(t) - used; used < 50*time.Millisecond {
			return
		}
		require.Less(t, round, 100, "three idle workers used %v in 200 ms", used)
	}
}

func processorTime(t *testing.T) time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		t.Skipf("processor time cannot be measured: %v", err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
