package gpuwait_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/gpuwait/gpuwaittest"
)

// On a machine with a GPU, gpuwait.Open() takes the place of the scripted source of these examples.
func oneGPU(steps ...gpuwaittest.Step) *gpuwaittest.Source {
	return gpuwaittest.New(gpuwaittest.Device{
		Device: gpuwait.Device{UUID: "GPU-1a2b", Name: "NVIDIA H200"},
		Total:  140 << 30, Steps: steps,
	})
}

func ExampleClear() {
	src := oneGPU(gpuwaittest.Step{Used: 63 << 30}, gpuwaittest.Step{At: 50 * time.Millisecond, Used: 1 << 30})
	report, err := gpuwait.Clear(context.Background(), src, gpuwait.Ratio(0.1), gpuwait.Devices("GPU-1a2b"),
		gpuwait.Timeout(time.Minute))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(report.Ending, report.Devices[0].Memory.Used>>30, "GiB")
	// Output: clear 1 GiB
}

func ExampleSnapshot() {
	src := oneGPU(gpuwaittest.Step{Used: 5 << 30}) // others use this GPU too
	gpu := gpuwait.Devices("GPU-1a2b")
	before, err := gpuwait.Snapshot(src, gpu)
	if err != nil {
		fmt.Println(err)
		return
	}
	src.Set("GPU-1a2b", gpuwaittest.Step{Used: 9 << 30}) // an engine that leaves 4 GiB behind
	_, err = gpuwait.Clear(context.Background(), src, gpuwait.Delta(before, 64<<20), gpu,
		gpuwait.Timeout(20*time.Millisecond))
	fmt.Println(errors.Is(err, gpuwait.ErrNotClear))

	release := gpuwait.Own("GPU-1a2b", "the suite's shared engine", 4<<30) // unless that is meant to stay
	defer release()
	_, err = gpuwait.Clear(context.Background(), src, gpuwait.Delta(before, 64<<20), gpu)
	fmt.Println(err)
	// Output:
	// true
	// <nil>
}

func ExampleOwn() {
	release := gpuwait.Own("GPU-1a2b", "session fixture", 20<<30)
	// … waits of this process now allow 20 GiB more on this device …
	release()
}

// In a test, gpuwait.Acquire(t, 1) does this, and releases in Cleanup.
func ExampleAcquireContext() {
	dir, err := os.MkdirTemp("", "leases")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	lease, err := gpuwait.AcquireContext(context.Background(), 1, gpuwait.From(oneGPU()), gpuwait.Devices("all"),
		gpuwait.MinFree(20<<30), gpuwait.LeaseDir(dir))
	if err != nil {
		fmt.Println(err) // who has it
		return
	}
	defer lease.Release()
	child := exec.Command("true")
	child.Env = append(os.Environ(), lease.Env()...)
	child.ExtraFiles = lease.Files() // the child keeps the lease until it ends, even if we are killed
	fmt.Println(lease.Env()[1], child.Run())
	// Output: CUDA_VISIBLE_DEVICES=GPU-1a2b <nil>
}

func ExampleInspect() {
	inventory, err := gpuwait.Inspect(oneGPU(gpuwaittest.Step{Used: 14 << 30}), gpuwait.Env(func(string) (string, bool) { return "", false }))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(inventory)
	// Output:
	// 0    GPU-1a2b                                   NVIDIA H200              14.0 GiB of 140.0 GiB (10%)
	//        14.0 GiB  unattributed
}

func ExampleVisible() {
	all := []gpuwait.Device{{UUID: "GPU-1a2b", Index: 0}, {UUID: "GPU-3c4d", Index: 1}, {UUID: "GPU-5e6f", Index: 2}}
	seen, err := gpuwait.Visible(all, func(name string) (string, bool) {
		return "2,GPU-1a,-1,1", name == "CUDA_VISIBLE_DEVICES"
	})
	fmt.Println(seen[0].UUID, seen[1].UUID, len(seen), err)
	// Output: GPU-5e6f GPU-1a2b 2 <nil>
}
