//go:build linux && (amd64 || arm64)

package gpuwait_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/forkproc"
	"github.com/enginetest/enginetest/gpuwait"
)

// withFakeNVML runs body once for each way of calling NVML, in a child whose libnvidia-ml is built
// from testdata/nvml. A child, because go-nvml binds each function once per process: the next
// library would never be called.
func withFakeNVML(t *testing.T, body func(t *testing.T, lib string), flags ...string) {
	for _, table := range gpuwait.NVMLTables() {
		t.Run(table, func(t *testing.T) {
			gpuwait.UseNVML(table)
			withFakeLibrary(t, body, flags...)
		})
	}
}

func withFakeLibrary(t *testing.T, body func(t *testing.T, lib string), flags ...string) {
	lib := os.Getenv("FAKE_NVML")
	if !forkproc.InChild() {
		cc, err := exec.LookPath("cc")
		if err != nil {
			t.Skipf("needs a C compiler: %v", err)
		}
		lib = filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
		out, err := exec.Command(cc, append(flags, "-shared", "-fPIC", "-Wall", "-Wno-format-truncation", "-o", lib,
			"testdata/nvml/nvml.c")...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	forkproc.Run(t, func(t *testing.T) {
		body(t, lib)
	}, forkproc.Env("FAKE_NVML="+lib, "FAKE_NVML_STATE="+filepath.Join(filepath.Dir(lib), "state"),
		gpuwait.LeaseDirEnv+"="+filepath.Dir(lib), "CUDA_VISIBLE_DEVICES="))
}

// machine writes what the fake driver shall say from now on.
func machine(t *testing.T, lines ...string) {
	t.Helper()
	file := os.Getenv("FAKE_NVML_STATE")
	err := os.WriteFile(file+".new", []byte(strings.Join(lines, "\n")+"\n"), 0o600)
	if err == nil {
		err = os.Rename(file+".new", file) // at once: the library may be reading
	}
	if err != nil {
		t.Error(err)
	}
}

func h200Line(used int64, ret int) string {
	return fmt.Sprintf("gpu 0 GPU-aaaa1111-0 %d %d %d %d 0 NVIDIA H200", 140*gib, used, 615*mib, ret)
}

// readFrom is a source that tells of each reading of memory after it.
type readFrom struct {
	gpuwait.Source
	told func()
}

func (r readFrom) Memory(uuid string) (gpuwait.Memory, error) {
	defer r.told()
	return r.Source.Memory(uuid)
}

func TestNVML(t *testing.T) { withFakeNVML(t, testNVML) }

func testNVML(t *testing.T, lib string) {
	const uuid = "GPU-aaaa1111-0"
	machine(t, h200Line(0, 0))
	open := func(t *testing.T) gpuwait.SourceCloser {
		src, err := gpuwait.OpenNVML(lib)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, src.Close()) })
		return src
	}
	// during waits on a machine that changes after each reading, until the last of the scenes; a wait
	// that does not end then is cut short.
	during := func(t *testing.T, cond gpuwait.Condition, scenes ...[]string) (gpuwait.Report, error) {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		machine(t, scenes[0]...)
		readings := 0
		src := readFrom{open(t), func() {
			readings++
			if readings < len(scenes) {
				machine(t, scenes[readings]...)
			} else if readings == len(scenes)+2 && len(scenes) > 1 {
				cancel(errors.New("nothing more happens"))
			}
		}}
		return gpuwait.Clear(ctx, src, cond, everything, gpuwait.Timeout(time.Minute), gpuwait.Patience(400*time.Millisecond))
	}

	t.Run("memory without the reserve", func(t *testing.T) {
		machine(t, h200Line(5*gib, 0))
		m, err := open(t).Memory(uuid)
		require.NoError(t, err)
		assert.Equal(t, gpuwait.Memory{Total: 140 * gib, Used: 5 * gib, Reserved: 615 * mib}, m)
	})
	t.Run("the driver refuses the second memory call", func(t *testing.T) {
		machine(t, h200Line(5*gib, 0), "v2 3")
		m, err := open(t).Memory(uuid)
		require.NoError(t, err)
		assert.Equal(t, gpuwait.Memory{Total: 140 * gib, Used: 5*gib + 615*mib, WithReserve: true}, m)
	})
	t.Run("no permission is not 0", func(t *testing.T) {
		machine(t, h200Line(5*gib, 4))
		_, err := open(t).Memory(uuid)
		require.ErrorIs(t, err, gpuwait.ErrCannotMeasure)
		require.ErrorContains(t, err, "Insufficient Permissions (4)")
	})
	t.Run("clears", func(t *testing.T) {
		r, err := during(t, gpuwait.Ratio(0.1), []string{h200Line(63*gib, 0), "proc compute " + uuid + " 1 1000"},
			[]string{h200Line(0, 0)})
		require.NoError(t, err)
		assert.Positive(t, r.Elapsed)
	})
	t.Run("never clears", func(t *testing.T) {
		self := fmt.Sprintf("proc compute %s %d %d", uuid, os.Getpid(), 56*gib)
		r, err := during(t, gpuwait.Ratio(0.1), []string{
			h200Line(63*gib, 0), self, "proc graphics " + uuid + " 1 -1",
			"proc graphics " + uuid + fmt.Sprintf(" %d 4096", os.Getpid()),
		})
		require.ErrorIs(t, err, gpuwait.ErrNotClear)
		assert.Equal(t, gpuwait.Held, r.Ending)
		t.Log("\n" + err.Error())
		require.Len(t, r.Devices[0].Holders, 2, "a process in both lists is one holder")
		assert.Contains(t, err.Error(), "NVIDIA H200")
		assert.Contains(t, err.Error(), "← this process")
		assert.Contains(t, err.Error(), "n/a  pid 1 ")
		assert.Contains(t, err.Error(), "the driver's reserve of 615.0 MiB is not counted")
	})
	t.Run("refills", func(t *testing.T) {
		r, err := during(t, gpuwait.Ratio(0.1), []string{h200Line(63*gib, 0)}, []string{h200Line(20*gib, 0)},
			[]string{h200Line(90*gib, 0)})
		require.ErrorIs(t, err, gpuwait.ErrNotClear)
		assert.Equal(t, gpuwait.TrendRefill, r.Devices[0].Trend)
	})
	t.Run("lost in the middle", func(t *testing.T) {
		r, err := during(t, gpuwait.Ratio(0.1), []string{h200Line(63*gib, 0)}, []string{h200Line(63*gib, 15)})
		require.ErrorIs(t, err, gpuwait.ErrLost)
		t.Log("\n" + err.Error())
		assert.Equal(t, gpuwait.Unmeasurable, r.Ending)
		assert.Contains(t, err.Error(), "GPU is lost")
		assert.Contains(t, err.Error(), "last reading 63.0 GiB of 140.0 GiB used")
	})
	t.Run("an impossible total is not a reading", func(t *testing.T) {
		machine(t, "gpu 0 GPU-aaaa1111-0 0 0 0 0 0 NVIDIA H200")
		_, err := open(t).Memory(uuid)
		require.ErrorIs(t, err, gpuwait.ErrCannotMeasure)
	})
	t.Run("the lists are refused", func(t *testing.T) {
		machine(t, h200Line(gib, 0), "list "+uuid+" 4")
		_, err := open(t).Holders(uuid)
		require.ErrorIs(t, err, gpuwait.ErrCannotMeasure)
		require.ErrorContains(t, err, "Insufficient Permissions")
	})
	t.Run("MIG", func(t *testing.T) {
		machine(t,
			// the GPU itself may not be read in MIG mode
			fmt.Sprintf("gpu 0 GPU-aaaa1111-0 %d 0 0 4 1 NVIDIA H200", 140*gib),
			fmt.Sprintf("mig 0 0 MIG-bbbb2222 %d %d 1 0", 16*gib, 3*gib),
			fmt.Sprintf("mig 0 2 MIG-cccc3333 %d 0 5 0", 32*gib), // the numbers have gaps
			"gpu 1 GPU-dddd4444-0 1000 10 0 0 -1 NVIDIA L4",
			fmt.Sprintf("proc compute MIG-bbbb2222 %d %d", os.Getpid(), 3*gib))
		src := open(t)
		all, err := src.Devices()
		require.NoError(t, err)
		require.Len(t, all, 4)
		assert.True(t, all[0].Sliced)
		assert.Equal(t, gpuwait.Device{
			UUID: "MIG-cccc3333", Name: "slice 2", Vendor: gpuwait.NVIDIA,
			Parent: "GPU-aaaa1111-0", MIG: 2, GI: 5,
		}, all[2])
		m, err := src.Memory("MIG-bbbb2222")
		require.NoError(t, err)
		assert.Equal(t, 16*gib, m.Total)
		_, err = src.Memory("GPU-aaaa1111-0")
		require.ErrorIs(t, err, gpuwait.ErrCannotMeasure)
		inv, err := gpuwait.Inspect(src)
		require.NoError(t, err)
		t.Log("\n" + inv.String())
		assert.Nil(t, inv.Devices[0].Memory)
		r, err := gpuwait.Clear(t.Context(), src, gpuwait.Ratio(0.5), gpuwait.Devices("all"))
		require.NoError(t, err)
		assert.Len(t, r.Devices, 3, "all: the slices and the GPU without MIG, not the GPU in MIG mode")
	})
	t.Run("a device that is not there", func(t *testing.T) {
		machine(t, h200Line(0, 0))
		_, err := open(t).Memory("GPU-nope")
		require.ErrorIs(t, err, gpuwait.ErrNoDevice)
	})
	t.Run("two users, each closing twice", func(t *testing.T) {
		machine(t, h200Line(gib, 0))
		a, b := open(t), open(t)
		require.NoError(t, a.Close())
		require.NoError(t, a.Close())
		_, err := a.Memory(uuid)
		require.ErrorIs(t, err, gpuwait.ErrCannotMeasure,
			"a closed source never calls the library: that would end the process")
		_, err = b.Memory(uuid)
		require.NoError(t, err)
		_, err = gpuwait.OpenNVML(lib + ".other")
		require.ErrorContains(t, err, "is open already")
	})
	t.Run("the driver is not loaded", func(t *testing.T) {
		machine(t, "init 9")
		_, err := gpuwait.OpenNVML(lib)
		require.ErrorIs(t, err, gpuwait.ErrCannotMeasure)
		require.ErrorContains(t, err, "Driver Not Loaded (9)")
		machine(t, h200Line(gib, 0))
		_, err = open(t).Memory(uuid)
		require.NoError(t, err, "and it can be opened later")
	})
}

func TestNVMLOldDriver(t *testing.T) { withFakeNVML(t, testNVMLOldDriver, "-DOLD") }

func testNVMLOldDriver(t *testing.T, lib string) {
	machine(t, h200Line(5*gib, 0), fmt.Sprintf("proc compute GPU-aaaa1111-0 %d %d", os.Getpid(), gib),
		"proc compute GPU-aaaa1111-0 1 -1")
	src, err := gpuwait.OpenNVML(lib)
	require.NoError(t, err)
	defer src.Close()
	all, err := src.Devices()
	require.NoError(t, err)
	require.Len(t, all, 1)
	m, err := src.Memory(all[0].UUID)
	require.NoError(t, err, "without the second memory call's symbol")
	assert.True(t, m.WithReserve)
	assert.Equal(t, 5*gib+615*mib, m.Used)
	hs, err := src.Holders(all[0].UUID)
	require.NoError(t, err)
	assert.Equal(t, []gpuwait.Holder{{PID: os.Getpid(), Bytes: gib, Known: true}, {PID: 1}}, hs)
}

func TestNVMLMissing(t *testing.T) {
	defer gpuwait.UseNVML(gpuwait.NVMLTables()[0])
	for _, table := range gpuwait.NVMLTables() {
		gpuwait.UseNVML(table)
		_, err := gpuwait.OpenNVML(filepath.Join(t.TempDir(), "libnvidia-ml.so.1"))
		require.ErrorIs(t, err, gpuwait.ErrCannotMeasure)
		require.ErrorContains(t, err, "no NVIDIA driver")

		_, err = gpuwait.OpenNVML("libc.so.6")
		require.ErrorIs(t, err, gpuwait.ErrCannotMeasure)
		require.ErrorContains(t, err, "libc.so.6 has no nvmlInit_v2")
	}
}

func TestNoGPU(t *testing.T) { withoutGPU(t, testNoGPU) }

func testNoGPU(t *testing.T) {
	root := t.TempDir()
	gpuwait.NoGPUEvidence(t, root)
	_, err := gpuwait.Open()
	require.ErrorIs(t, err, gpuwait.ErrNoSource)
	require.EqualError(t, err,
		"gpuwait: cannot measure: no GPU found: neither /sys nor /dev shows one of NVIDIA or AMD")
	assert.Equal(t, 3, gpuwait.ExitCode(err))

	for path, says := range map[string]string{
		"dev/nvidia0":                 "/dev/nvidia0",
		"dev/kfd":                     "/dev/kfd",
		"proc/driver/nvidia/gpus/0/x": "/proc/driver/nvidia/gpus/0",
		"sys/bus/pci/devices/0/class": "NVIDIA GPU at PCI 0 (without a driver)",
	} {
		root := t.TempDir()
		put := func(path, text string) {
			file := filepath.Join(root, path)
			require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
			require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		}
		put("sys/bus/pci/devices/1/class", "0x030000\n") // a display controller of a hypervisor
		put("sys/bus/pci/devices/1/vendor", "0x1af4\n")
		put("sys/bus/pci/devices/0/vendor", "0x10de\n") // without a class, it is the sound of a GPU
		put(path, "0x030200\n")
		gpuwait.NoGPUEvidence(t, root)
		_, err := gpuwait.Open()
		require.ErrorIs(t, err, gpuwait.ErrCannotMeasure)
		require.NotErrorIs(t, err, gpuwait.ErrNoSource, "what cannot be read is not absent")
		require.ErrorContains(t, err, "this machine has a GPU ("+says+") that cannot be read: NVML: no NVIDIA driver: ")
	}
}

// A driver that answers and lists nothing is no proof that there is no GPU.
func TestNVMLListsNoDevice(t *testing.T) { withFakeNVML(t, testNVMLListsNoDevice) }

func testNVMLListsNoDevice(t *testing.T, lib string) {
	machine(t)
	src, err := gpuwait.OpenNVML(lib)
	require.NoError(t, err)
	require.NoError(t, src.Close())
	_, err = gpuwait.Snapshot(src)
	require.ErrorIs(t, err, gpuwait.ErrCannotMeasure)
}
