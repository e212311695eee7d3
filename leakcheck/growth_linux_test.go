package leakcheck_test

import (
	"slices"
	"syscall"
	"testing"

	"github.com/enginetest/enginetest/leakcheck"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestGrowthOutsideTheHeap: memory that Go's allocator knows nothing of, as C code takes it.
func TestGrowthOutsideTheHeap(t *testing.T) {
	t.Setenv("MALLOC_ARENA_MAX", "")
	var kept [][]byte
	rep, err := leakcheck.MeasureGrowth(t.Context(), 10, func(int) {
		b, err := syscall.Mmap(-1, 0, 4<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
		require.NoError(t, err)
		for i := range b {
			b[i] = 1
		}
		kept = append(kept, b)
	})
	for _, b := range kept {
		require.NoError(t, syscall.Munmap(b))
	}
	if i := slices.IndexFunc(rep.Trends, func(t leakcheck.Trend) bool { return t.Unjudged != "" }); i >= 0 {
		require.NoError(t, err, "under the race detector")
		assert.Contains(t, rep.Table(), rep.Trends[i].Unjudged)
		return
	}
	require.Error(t, err)
	for _, want := range []string{
		"memory outside the Go heap: 4.", "more with every round", "MALLOC_ARENA_MAX=1",
		`leakcheck.Allow("memory: growth of memory outside the Go heap", "reason")`,
	} {
		assert.ErrorContains(t, err, want)
	}
	t.Log(err)
	assert.True(t, rep.Trends[0].Grows())
}
