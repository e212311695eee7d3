package forkproc_test

import (
	"context"
	"fmt"
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

func ExampleResult() {
	// func TestLoadTime(t *testing.T) {
	took := forkproc.Result(t, func(*testing.T) time.Duration {
		start := time.Now()
		// load the engine
		return time.Since(start)
	})
	t.Log(took) // a variable that the body assigns to would still have its old value here
	// }
}

// A Ginkgo spec has no *testing.T that could be selected by name. It calls a registered function;
// TestMain calls Main.
func ExampleRegister() {
	// A package-level variable:
	generate := forkproc.Register("generate", func(ctx context.Context, prompt []int) ([]int, error) {
		return prompt, ctx.Err() // load the engine and use the device here
	})
	// It("generates", func(ctx SpecContext) {
	ctx := context.Background()
	tokens, err := generate.Call(ctx, []int{1, 2, 3}, forkproc.VisibleDevices("0"))
	fmt.Println(tokens, err)
	// })
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
