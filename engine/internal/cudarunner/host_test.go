package cudarunner

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/cuda"
)

// hostKernels builds the sampler's kernels for the host; see testdata/host.cpp.
func hostKernels(t *testing.T) (run func(name string, x, y uint32, args unsafe.Pointer) int32) {
	t.Helper()
	if _, err := exec.LookPath("c++"); err != nil {
		t.Skipf("no C++ compiler to build the kernels for the host with: %v", err)
	}
	if _, err := os.Stat("../../../cuda/kernels/sift.cu"); err != nil {
		t.Skip("the sources of the kernels are not here")
	}
	lib := filepath.Join(t.TempDir(), "host.so")
	out, err := exec.Command("c++", "-std=c++17", "-O1", "-ffp-contract=off", "-fPIC", "-shared", "-w",
		"-U_FORTIFY_SOURCE", "-I../../../cuda/kernels", "testdata/host.cpp", "-o", lib).CombinedOutput()
	require.NoError(t, err, "%s", out)
	h, err := purego.Dlopen(lib, purego.RTLD_NOW)
	require.NoError(t, err)
	purego.RegisterLibFunc(&run, h, "host_run")
	return run
}

// onHostKernels makes a runner on the stand-in for libcuda launch the sampler's kernels on the
// host.
func onHostKernels(t *testing.T, v cuda.Device, vocab int,
	run func(name string, x, y uint32, args unsafe.Pointer) int32,
) *Runner {
	t.Helper()
	r, err := openDir(t, v, siftModel(t, vocab), Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	r.kernels.sms = 8 // few blocks
	r.kernels.around = func(name string, grid cuda.Dim, args []any, _ func() error) error {
		if err := r.stream.Synchronize(); err != nil { // the copies before it
			return err
		}
		values, at := make([]uint64, len(args)), make([]unsafe.Pointer, len(args))
		for i, a := range args {
			at[i] = unsafe.Pointer(&values[i])
			switch a := a.(type) {
			case int:
				*(*int32)(at[i]) = int32(a)
			case cuda.DevicePtr:
				values[i] = uint64(a)
			default:
				return fmt.Errorf("argument %d of %s is a %T", i, name, a)
			}
		}
		if run(name, uint32(max(1, grid.X)), uint32(max(1, grid.Y)), unsafe.Pointer(&at[0])) != 0 {
			return fmt.Errorf("no kernel %s", name)
		}
		return nil
	}
	return r
}

// TestSiftOnHost runs the kernels' own source against engine/internal/sample, without a GPU: also
// with room for four tokens in a list, and with a fault planted.
func TestSiftOnHost(t *testing.T) {
	run := hostKernels(t)
	_, v := stubDevice(t)
	for _, c := range []struct{ vocab, rounds, room int }{{1, 1, 0}, {97, 3, 0}, {1009, 2, 0}, {700, 3, 4}} {
		r := onHostKernels(t, v, c.vocab, run)
		if c.room > 0 {
			r.work.room = c.room
		}
		n, wrong, back := compareDrawings(t, r, siftDrawings(c.vocab, c.rounds, 1))
		t.Logf("vocabulary %d: %d rows, %d handed back", c.vocab, n, back)
		require.Empty(t, wrong)
	}
	r := onHostKernels(t, v, 97, run)
	kernel, fault := r.kernels.around, borderFault(r)
	r.kernels.around = func(name string, grid cuda.Dim, args []any, launch func() error) error {
		return fault(name, grid, args, func() error { return kernel(name, grid, args, launch) })
	}
	_, wrong, _ := compareDrawings(t, r, siftDrawings(97, 2, 1))
	require.NotEmpty(t, wrong, "a border that is one token off")
	t.Logf("planted fault: %d rows differ, the first: %s", len(wrong), wrong[0])
}
