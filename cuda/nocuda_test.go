package cuda_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/forkproc"
)

// What forkproc promises, asked of the real driver: a test that uses the GPU in a child leaves its
// parent without CUDA. Other tests of this package have used the driver in this process, so the
// parent is a process of its own too.
func TestGPUOnlyTheChildHasCUDA(t *testing.T) {
	const key = "CUDA_TEST_PARENT"
	if os.Getenv(key) == "" {
		if err := cuda.Available(cuda.Library("libcuda.so.1")); err != nil {
			t.Skipf("no GPU: %v", err)
		}
		require.Error(t, forkproc.NoCUDA(), "this process has just initialised it")
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
		cmd.Env = append(os.Environ(), key+"=1")
		out, err := cmd.CombinedOutput()
		t.Logf("in a process of its own:\n| %s", strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", "\n| "))
		require.NoError(t, err)
		require.Contains(t, string(out), "--- PASS: "+t.Name(), "the test must have run there")
		return
	}
	if !forkproc.InChild() {
		forkproc.RequireNoCUDA(t)
	}
	forkproc.Run(t, func(t *testing.T) {
		require.NoError(t, forkproc.NoCUDA(), "the child before it opens the driver")
		d, err := cuda.Open(cuda.Library("libcuda.so.1"))
		require.NoError(t, err)
		v, err := d.Device("0")
		require.NoError(t, err)
		w, err := cuda.NewWorker(v, cuda.Config{})
		require.NoError(t, err)
		err = forkproc.NoCUDA()
		t.Logf("in the child: %v", err)
		var has *forkproc.CUDAError
		require.ErrorAs(t, err, &has)
		require.NoError(t, w.Do(w.Synchronize))
		require.NoError(t, w.Close(t.Context()))
	}, forkproc.Timeout(30*time.Second))
	forkproc.RequireNoCUDA(t)
}
