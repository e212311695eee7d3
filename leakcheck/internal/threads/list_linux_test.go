package threads

import (
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestOfGo: threads that the runtime starts are not taken for C's, also while others begin and end.
// One that is at its end may be unknown for a moment: then the next look has to clear it.
func TestOfGo(t *testing.T) {
	m := openMachines()
	require.NotNil(t, m)
	defer m.close()
	ids, _, ok := m.all(true)
	require.True(t, ok)
	assert.True(t, ids[os.Getpid()])
	var wg sync.WaitGroup
	for range 20 {
		for range 4 {
			wg.Go(func() { runtime.LockOSThread() }) // its thread ends with it
		}
		var left []Thread
		for start := time.Now(); time.Since(start) < time.Minute; {
			if left = slices.DeleteFunc(All(), func(t Thread) bool { return !t.Left }); len(left) == 0 {
				break
			}
		}
		require.Empty(t, left)
	}
	wg.Wait()
}

// TestExempt: the libraries of the driver, and those that keep a pool, are known by their whole
// names.
func TestExempt(t *testing.T) {
	for _, name := range []string{
		"libcuda.so.1", "libcuda.so.550.54.14", "libcudart.so.12", "libcublas.so.12", "libcublasLt.so.12.4.5.8",
		"libcufft.so.11", "libcurand.so.10", "libcusolver.so.11", "libcusparse.so.12", "libcudnn.so.9",
		"libcudnn_ops_infer.so.8", "libnccl.so.2", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.550.54.14",
		"libnvrtc.so.12", "libnvrtc-builtins.so.12.4", "libnvJitLink.so.12", "libnvToolsExt.so.1",
		"libgomp.so.1", "libgomp-a34b3233.so.1.0.0", "libiomp5.so", "libtbb.so.12", "libopenblas64_.so.0",
		"libmkl_intel_thread.so.2",
	} {
		assert.True(t, exempt("", name), name)
	}
	for _, name := range []string{
		"libcurl.so.4", "libcups.so.2", "libcurses.so", "libcunit.so.1", "libcutils.so", "libnvme.so.1", "libnvpair.so.3",
		"libnccl_user.so", "libcudaengine.so", "libtbbackend.so", "libompress.so", "llama.test",
	} {
		assert.False(t, exempt("", name), name)
	}
	assert.True(t, exempt("cuda-EvtHandlr", "libengine.so"), "by the thread's name")
	assert.True(t, exempt("decoder", ""), "only the C library's code is on its stack")
}

// TestBesideDriver: which threads the CUDA driver starts has been seen on no device, so beside it no
// thread is said to be C's.
func TestBesideDriver(t *testing.T) {
	assert.True(t, driven([]mapping{{name: "libc.so.6"}, {name: "libcuda.so.550.54.14"}}))
	assert.False(t, driven([]mapping{{name: "libc.so.6"}, {name: "libcurl.so.4"}}))
	assert.False(t, driven(executable()))
}
