package forkproc_test

import (
	"os"
	"testing"
	"time"

	"github.com/enginetest/enginetest/forkproc"
)

// The examples are the bodies of tests: Run needs the *testing.T of a real one.
var t *testing.T

func ExampleRun() {
	// func TestGenerate(t *testing.T) {
	forkproc.Run(t, func(t *testing.T) {
		// All of this is in a child: load the engine, use the device, crash if you must.
		t.Run("greedy", func(t *testing.T) { t.Log("a subtest here is a subtest of the parent") })
	}, forkproc.VisibleDevices("GPU-1a2b3c4d"), forkproc.Timeout(5*time.Minute))
	forkproc.RequireNoCUDA(t) // the parent never touched the device
	// }
}

func ExampleExpect() {
	// func TestEngineDiesOfABadCheckpoint(t *testing.T) {
	o := forkproc.Run(t, func(*testing.T) {
		panic("weights: truncated file")
	}, forkproc.Expect(forkproc.Panicked("truncated file")))
	t.Logf("%s after %v in phase %s; last output:\n%s", o.Status, o.Duration, o.Phase, o.Tail)
	// }
}

func ExampleWrap() {
	forkproc.Run(t, func(*testing.T) { /* launch kernels */ },
		forkproc.Wrap("compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "86"))
}

func ExampleMain() {
	var m *testing.M
	// func TestMain(m *testing.M) {
	forkproc.Main(m, func() {
		_ = os.Setenv("CHECKPOINTS", "/models") // in the root process only
	})
	// }
}

func ExampleAccept() {
	forkproc.Run(t, func(*testing.T) { /* start an engine that uses the MPS daemon and NCCL */ },
		forkproc.Accept("nvidia-cuda-mps-*", "/dev/shm/nccl-*"))
}
