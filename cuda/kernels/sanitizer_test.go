package kernels_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/cuda"
)

// faults is a module of kernels that do what each tool of compute-sanitizer is there to find.
const faults = `.version 7.0
.target sm_80
.address_size 64

.visible .entry memcheck(.param .u64 p) // reads behind the memory's end
{
	.reg .b32 %r<2>;
	.reg .b64 %d<2>;
	ld.param.u64 %d1, [p];
	ld.global.u32 %r1, [%d1+1024];
	st.global.u32 [%d1], %r1;
	ret;
}
.visible .entry racecheck(.param .u64 p) // the warps of a block write one word and read it
{
	.reg .b32 %r<3>;
	.reg .b64 %d<2>;
	.shared .align 4 .b32 word;
	ld.param.u64 %d1, [p];
	mov.u32 %r1, %tid.x;
	st.volatile.shared.u32 [word], %r1;
	ld.volatile.shared.u32 %r2, [word];
	st.global.u32 [%d1], %r2;
	ret;
}
.visible .entry synccheck(.param .u64 p) // the threads of a warp wait in two places
{
	.reg .pred %q<2>;
	.reg .b32 %r<2>;
	mov.u32 %r1, %tid.x;
	setp.lt.u32 %q1, %r1, 16;
	@%q1 bra LOW;
	bar.sync 0;
	bra.uni DONE;
LOW:
	bar.sync 0;
DONE:
	ret;
}
`

// TestPlantedForSanitizer runs the fault that the named tool of compute-sanitizer must find: a tool
// that finds nothing in TestKernels proves something only when it finds this. gpu-bundle's run.sh
// --sanitize runs both. There is no need for initcheck: in TestKernels all that no one has written
// is NaN.
func TestPlantedForSanitizer(t *testing.T) {
	tool := os.Getenv("ENGINETEST_SANITIZER_PLANT")
	if tool == "" {
		t.Skip("it plants a fault on the device: only for compute-sanitizer, with ENGINETEST_SANITIZER_PLANT=memcheck, racecheck or synccheck")
	}
	dev := openDevice(t, gpu(t), func() (string, []byte, error) { return "faults.ptx", []byte(faults), nil })
	require.NoError(t, dev.w.Do(func() error {
		m, err := dev.w.Alloc("planted", 256)
		if err != nil {
			return err
		}
		f, err := dev.module.Function(tool)
		if err != nil {
			return err
		}
		if err := f.Launch(dev.stream, cuda.Launch{Block: cuda.Dim{X: 64}},
			cuda.NewArgs(1).Memory(0, m, 0)); err != nil {
			return err
		}
		t.Log("after it:", dev.stream.Synchronize()) // memcheck ends the context
		return m.Free()
	}))
}
