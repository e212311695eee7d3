package cpu

import (
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/enginetest/enginetest/ledger"
	"github.com/stretchr/testify/require"
)

func TestAllocatorKeepsItsBooks(t *testing.T) {
	books := ledger.New(true)
	a := NewAllocator(AllocatorConfig{Index: 3, Ledger: books})
	w, err := a.Alloc("weights", 1<<20)
	require.NoError(t, err)
	kv, err := a.Alloc("kv_cache", 10)
	require.NoError(t, err)
	hs := books.Holdings()
	require.Len(t, hs, 2)
	require.Equal(t, "weights 1.0 MiB on cpu:3 (mapped)", strings.Split(hs[0].String(), " allocated by ")[0])
	require.NotZero(t, hs[0].Addr)
	require.Contains(t, strings.Join(hs[0].Stack, "\n"), "TestAllocatorKeepsItsBooks")

	require.Len(t, kv.Bytes(), 10)
	require.Len(t, kv.Float32s(), 2)
	f := w.Float32s()
	require.Zero(t, f[len(f)-1])
	f[len(f)-1] = 1
	require.EqualValues(t, 0x80, w.Bytes()[1<<20-2])

	require.NoError(t, w.Free())
	again := w.Free()
	require.ErrorIs(t, again, ErrFreed)
	require.EqualError(t, again, "cpu: buffer freed twice: 1.0 MiB of weights")
	require.Nil(t, w.Bytes())
	require.Empty(t, w.Float32s())
	require.EqualValues(t, 10, books.Bytes())
	require.NoError(t, kv.Free())
	require.Empty(t, books.Holdings())
}

func TestHugePagesAreOnlyAdvice(t *testing.T) {
	a := NewAllocator(AllocatorConfig{})
	for _, n := range []int64{0, 5, 3 << 20} {
		b, err := a.Alloc("weights", n)
		require.NoError(t, err)
		b.PreferHugePages()
		require.Len(t, b.Bytes(), int(n))
		clear(b.Bytes())
		require.NoError(t, b.Free())
		b.PreferHugePages() // of nothing
	}
}

func TestEmptyBuffer(t *testing.T) {
	a := NewAllocator(AllocatorConfig{})
	b, err := a.Alloc("nothing", 0)
	require.NoError(t, err)
	require.Empty(t, b.Float32s())
	require.NoError(t, b.Free())
	_, err = a.Alloc("nonsense", -1)
	require.EqualError(t, err, "cpu: nonsense asked for -1 bytes")
	require.Empty(t, a.Ledger().Holdings())
}

func TestOutOfMemory(t *testing.T) {
	a := NewAllocator(AllocatorConfig{Capacity: 1 << 20})
	w, err := a.Alloc("weights", 700<<10)
	require.NoError(t, err)
	_, err = a.Alloc("kv_cache", 400<<10)
	var oom *OutOfMemory
	require.ErrorAs(t, err, &oom)
	require.Equal(t, OutOfMemory{Owner: "kv_cache", Bytes: 400 << 10, Free: 324 << 10, Total: 1 << 20}, *oom)
	require.EqualError(t, err, "cpu: out of memory: kv_cache asked for 400.0 KiB, 324.0 KiB of 1.0 MiB free")
	free, total, err := a.Memory()
	require.NoError(t, err)
	require.EqualValues(t, 324<<10, free)
	require.EqualValues(t, 1<<20, total)
	require.NoError(t, w.Free())
	all, err := a.Alloc("kv_cache", 1<<20)
	require.NoError(t, err)
	require.NoError(t, all.Free())
}

func TestTheSystemRefuses(t *testing.T) {
	a := NewAllocator(AllocatorConfig{})
	_, err := a.Alloc("kv_cache", 1<<60)
	var oom *OutOfMemory
	require.ErrorAs(t, err, &oom)
	require.Error(t, oom.Cause)
	require.Empty(t, a.Ledger().Holdings())
}

func TestBeforeCanRefuse(t *testing.T) {
	fault := errors.New("injected")
	calls := 0
	a := NewAllocator(AllocatorConfig{Before: func(owner string, bytes int64) error {
		require.Equal(t, "weights", owner)
		require.EqualValues(t, 64, bytes)
		if calls++; calls == 2 {
			return fault
		}
		return nil
	}})
	b, err := a.Alloc("weights", 64)
	require.NoError(t, err)
	_, err = a.Alloc("weights", 64)
	require.ErrorIs(t, err, fault)
	require.Len(t, a.Ledger().Holdings(), 1)
	require.NoError(t, b.Free())
}

func TestUseAfterFreeFaults(t *testing.T) {
	b, err := NewAllocator(AllocatorConfig{}).Alloc("weights", 1<<20)
	require.NoError(t, err)
	stale := b.Float32s()
	require.NoError(t, b.Free())
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	require.Panics(t, func() { t.Log(stale[1000]) })
}

// A cache of any size costs what is touched of it.
func TestUntouchedMemoryIsFree(t *testing.T) {
	if mode, err := number("/proc/sys/vm/overcommit_memory"); err == nil && mode == 2 {
		t.Skip("vm.overcommit_memory is 2: this machine counts memory that is not touched")
	}
	before := resident(t)
	b, err := NewAllocator(AllocatorConfig{}).Alloc("kv_cache", 64<<30)
	require.NoError(t, err)
	mem := b.Bytes()
	mem[len(mem)-1] = 1
	require.Less(t, resident(t)-before, int64(32<<20))
	require.NoError(t, b.Free())
}

func resident(t *testing.T) int64 {
	info, err := keyed("/proc/self/status")
	require.NoError(t, err)
	return info["VmRSS:"] * 1024
}

func TestMachineMemoryHonoursControlGroups(t *testing.T) {
	const mem = "MemTotal: 16000 kB\nMemFree: 100 kB\nMemAvailable: 8000 kB\n"
	const kb = 1024
	for _, c := range []struct {
		why         string
		files       map[string]string
		free, total int64
	}{
		{"none", nil, 8000 * kb, 16000 * kb},
		{
			"version 2, the parent is the tighter one, file cache counts as free",
			map[string]string{
				"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n",
				"sys/fs/cgroup/a/memory.max": "4096000\n", "sys/fs/cgroup/a/memory.current": "2048000\n",
				"sys/fs/cgroup/a/memory.stat": "anon 5\ninactive_file 1024000\n",
			},
			3000 * kb, 4000 * kb,
		},
		{
			"version 2 in a container: only the mount's root is there",
			map[string]string{
				"proc/self/cgroup": "0::/pod/x\n", "sys/fs/cgroup/memory.max": "1024000\n",
				"sys/fs/cgroup/memory.current": "2048000\n",
			},
			0, 1000 * kb,
		},
		{
			"version 1",
			map[string]string{
				"proc/self/cgroup": "5:cpu,cpuacct:/\n4:memory:/g\n",
				"sys/fs/cgroup/memory/g/memory.limit_in_bytes": "2048000\n",
				"sys/fs/cgroup/memory/g/memory.usage_in_bytes": "1024000\n",
				"sys/fs/cgroup/memory/memory.limit_in_bytes":   "9223372036854771712\n",
			},
			1000 * kb, 2000 * kb,
		},
	} {
		root := t.TempDir()
		write(t, root, "proc/meminfo", mem)
		for name, text := range c.files {
			write(t, root, name, text)
		}
		free, total, err := machineMemoryAt(root)
		require.NoError(t, err, c.why)
		require.Equal(t, []int64{c.free, c.total}, []int64{free, total}, c.why)
	}
	_, _, err := machineMemoryAt(t.TempDir())
	require.ErrorIs(t, err, os.ErrNotExist)

	free, total, err := NewAllocator(AllocatorConfig{}).Memory()
	require.NoError(t, err)
	require.Positive(t, free)
	require.Greater(t, total, free)
}

func write(t *testing.T, root, name, text string) {
	file := filepath.Join(root, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
}
