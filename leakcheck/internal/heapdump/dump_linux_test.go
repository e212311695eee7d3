package heapdump

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type list struct {
	next *list
	_    [3]uint64
}

var head *list

func address[T any](p *T) uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

// TestFind: every object is found by its first, last and middle byte, and nothing is found between
// objects or outside the heap.
func TestFind(t *testing.T) {
	head = &list{}
	for range 1000 {
		head = &list{next: head}
	}
	big := make([]*list, 20_000)
	big[19_999] = head
	runtime.GC()
	d, err := Take()
	require.NoError(t, err)
	defer d.Close()
	for i := range d.Sized(0, 1<<40) {
		a, n := d.Addr(i), d.Size(i)
		for _, at := range []uint64{a, a + n/2, a + n - 1} {
			require.Equal(t, i, d.Find(at), "object %d at %#x of %d bytes", i, a, n)
		}
	}
	assert.Equal(t, -1, d.Find(d.HeapLo-8))
	assert.Equal(t, -1, d.Find(d.HeapHi+8))
	assert.Equal(t, -1, d.Find(0))
	i := d.Find(address(&big[0]))
	require.GreaterOrEqual(t, i, 0)
	assert.GreaterOrEqual(t, d.Size(i), uint64(160_000))
	assert.Contains(t, d.Mask(i), uint64(19_999*8))
	assert.Equal(t, address(head), d.Word(address(&big[19_999])))
	runtime.KeepAlive(big)
}

// TestSearch: the way to the end of a list is the list, and no longer.
func TestSearch(t *testing.T) {
	head = &list{}
	end := address(head)
	for range 500 {
		head = &list{next: head}
	}
	runtime.GC()
	d, err := Take()
	require.NoError(t, err)
	defer d.Close()
	s := NewSearch(d, 2)
	s.Postpone = func(int, uint64) bool { return false }
	s.Root(1, 7, address(head))
	target := d.Find(end)
	assert.Equal(t, 1, s.Run([]int{target}, 1), "it hangs on a root of the second class")
	assert.Zero(t, s.Run([]int{target}, 2))
	path, root, ok := s.Path(target)
	require.True(t, ok)
	assert.Equal(t, 7, root)
	assert.Len(t, path, 501)
	assert.Equal(t, target, path[500])
	size, n := d.Reach(path[0], 1<<20)
	assert.Equal(t, 501, n)
	assert.Equal(t, uint64(501*32), size)
	head = nil
}

// TestOrphans: what no root reaches is followed back to its top.
func TestOrphans(t *testing.T) {
	head = &list{next: &list{next: &list{}}}
	end := address(head.next.next)
	runtime.GC()
	d, err := Take()
	require.NoError(t, err)
	defer d.Close()
	s := NewSearch(d, 1)
	up, next := s.Orphans(d.Find(end))
	require.GreaterOrEqual(t, len(up), 3)
	assert.Equal(t, d.Find(address(head)), up[2])
	s.Attach(up[2], 3, next)
	path, root, ok := s.Path(d.Find(end))
	assert.True(t, ok)
	assert.Equal(t, 3, root)
	assert.Equal(t, []int{up[2], up[1], up[0]}, path)
	head = nil
}

func rawDump(t *testing.T) []byte {
	f, err := os.Create(filepath.Join(t.TempDir(), "dump"))
	require.NoError(t, err)
	defer f.Close()
	debug.WriteHeapDump(f.Fd())
	b, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	return b
}

// TestBadDump: a format that is not known, or a file that was cut off, is refused with a typed
// error, and never panics.
func TestBadDump(t *testing.T) {
	b := rawDump(t)
	_, err := Parse(b)
	require.NoError(t, err)
	for name, bad := range map[string][]byte{
		"empty":          {},
		"another format": append([]byte("go1.99 heap dump\n"), b[len(header):]...),
		"unknown record": append([]byte(header), 99),
		"huge length":    append([]byte(header), 1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1),
		"nothing in it":  append([]byte(header), 0),
	} {
		_, err := Parse(bad)
		assert.ErrorIs(t, err, ErrFormat, name)
	}
	for _, cut := range []int{20, 100, 1000, len(b) / 2, len(b) - 2} {
		_, err := Parse(b[:cut])
		assert.ErrorIs(t, err, ErrFormat, "cut at %d", cut)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(header))
	f.Add(append([]byte(header), 6, 0, 8, 0, 0, 0, 0, 0, 0))
	f.Add(append([]byte(header), 6, 0, 8, 8, 16, 1, 65, 1, 66, 1, 1, 8, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := Parse(append([]byte(header), bytes.TrimPrefix(b, []byte(header))...))
		if err == nil {
			for i := range d.Sized(0, 1<<40) {
				d.Find(d.Addr(i))
			}
		}
	})
}
