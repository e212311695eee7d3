package heapdump

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"syscall"
)

// MaxHeap is the largest heap that is dumped.
const MaxHeap = 16 << 30

// ballast is allocated before a dump. Go (1.26, 1.27) kills the process when a goroutine is just returning
// from a system call while the dump lists the goroutines ("dumpgs in STW - bad status"): it is
// marked as running, and has no processor to run on. The dump writes the objects before that, with
// the world stopped: while the ballast goes to the file, threads that were in short system calls
// come back and park. With four goroutines in sched_yield on two processors, a bare dump crashed
// after 150 to 460 times (6 of 6 runs); with the ballast, never in 4,500.
const ballast = 12 << 20

// Take dumps the heap of this process and reads the dump. The file has no name and goes with the
// Dump.
func Take() (*Dump, error) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if m.HeapAlloc > MaxHeap {
		return nil, fmt.Errorf("heapdump: the heap has %d MiB, more than the %d MiB that are dumped", m.HeapAlloc>>20,
			MaxHeap>>20)
	}
	if err := leakedGoroutines(); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp("", "leakcheck-*.heap")
	if err != nil {
		return nil, fmt.Errorf("heapdump: %w", err)
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil {
		return nil, fmt.Errorf("heapdump: %w", err)
	}
	var fs syscall.Statfs_t
	if need := m.HeapAlloc + m.HeapAlloc/2 + ballast; syscall.Fstatfs(int(f.Fd()), &fs) == nil &&
		uint64(fs.Bsize)*fs.Bavail < need {
		return nil, fmt.Errorf("heapdump: %s has %d MiB left, the dump may need %d (set TMPDIR)", os.TempDir(),
			uint64(fs.Bsize)*fs.Bavail>>20, need>>20)
	}
	spare := write(f)
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("heapdump: %w", err)
	}
	if st.Size() < ballast {
		return nil, fmt.Errorf("heapdump: the runtime wrote only %d bytes to %s: is the disk full?", st.Size(),
			os.TempDir())
	}
	data, err := syscall.Mmap(int(f.Fd()), 0, int(st.Size()), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("heapdump: mmap of %d bytes: %w", st.Size(), err)
	}
	done := 0
	handBack := func(n int) { // the pages of what has been read stay in the file, but not in this process
		n &^= os.Getpagesize() - 1
		_ = syscall.Madvise(data[done:n], syscall.MADV_DONTNEED)
		done = n
	}
	d, err := parse(data, spare, handBack)
	if err != nil {
		return nil, errors.Join(err, syscall.Munmap(data))
	}
	d.close = func() error { return syscall.Munmap(data) }
	return d, nil
}

// write returns the ballast: the index takes its place.
//
//go:noinline
func write(f *os.File) []uint32 {
	b := make([]uint32, ballast/4)
	debug.WriteHeapDump(f.Fd())
	return b
}

// leakedGoroutines refuses a dump that would kill the process: the runtime does not know the state in
// which its goroutine leak profile leaves the goroutines that it found.
func leakedGoroutines() error {
	if pprof.Lookup("goroutineleak") == nil {
		return nil
	}
	buf := make([]byte, 1<<20)
	if strings.Contains(string(buf[:runtime.Stack(buf, true)]), " (leaked)") {
		return errors.New("heapdump: the goroutine leak profile was taken before: in this Go release a heap dump after it kills the process")
	}
	return nil
}
