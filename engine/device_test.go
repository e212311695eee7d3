package engine

import (
	"testing"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/internal/cudatest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Which GPUs a Device names, and how many there are when they are too few; on the stand-in for
// libcuda.
func TestPickGPUs(t *testing.T) {
	s := cudatest.New(t, 3, 1<<30)
	driver, err := cuda.Open(cuda.Library(s.Path))
	require.NoError(t, err)
	all, err := driver.Devices()
	require.NoError(t, err)
	for _, c := range []struct {
		device string
		n      int
		want   []int
		fails  string
	}{
		{"", 1, []int{0}, ""},
		{"cuda", 3, []int{0, 1, 2}, ""},
		{"cuda:1", 2, []int{1, 2}, ""},
		{"cuda:2,0", 2, []int{2, 0}, ""},
		{"cuda:" + all[1].UUID, 2, []int{1, 2}, ""},
		{"cuda:" + all[2].UUID + "," + all[1].UUID, 2, []int{2, 1}, ""},
		{"cuda:1,1", 2, []int{1, 1}, ""},
		{"cuda", 4, nil, "TensorParallel is 4, must be at most 3: that is how many GPUs there are from Stub GPU (" +
			all[0].UUID},
		{"cuda:2", 2, nil, "TensorParallel is 2, must be at most 1: that is how many GPUs there are from Stub GPU (" +
			all[2].UUID},
		{"cuda:3", 1, nil, "no device 3, there are 3"},
		{"cuda:0,7", 2, nil, "no device 7, there are 3"},
	} {
		gpus, err := pickGPUs(driver, c.device, c.n)
		if c.fails != "" {
			assert.ErrorContains(t, err, c.fails, c.device)
			continue
		}
		require.NoError(t, err, c.device)
		var got []int
		for _, v := range gpus {
			got = append(got, v.Ordinal)
		}
		assert.Equal(t, c.want, got, c.device)
	}
}
