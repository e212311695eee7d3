package harness_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/harness"
)

// A machine that shows a GPU which cannot be read is no machine without one: the fixture fails and
// says how to accept that.
func TestWhatCannotBeReadIsNotAbsent(t *testing.T) {
	if src, err := gpuwait.Open(); err == nil {
		require.NoError(t, src.Close())
		t.Skip("this machine's devices can be read")
	}
	// in a mount namespace of its own /proc shows what the driver would show
	show := `mount -t tmpfs none /proc/driver && mkdir -p /proc/driver/nvidia/gpus/0 && exec "$0" "$@"`
	c := exec.Command("unshare", "--mount", "sh", "-c", show, os.Args[0], "-test.run", "^TestChildWithoutDriver$",
		"-test.v=test2json", "-test.count=1")
	c.Env = append(os.Environ(), "HARNESS_CHILD=1")
	b, err := c.CombinedOutput()
	out := string(b)
	if err != nil && !strings.Contains(out, "TestChildWithoutDriver") {
		t.Skipf("a mount namespace needs rights that this process lacks: %s", strings.TrimSpace(out))
	}
	require.Error(t, err, out)
	assert.Contains(t, out, "--- FAIL: TestChildWithoutDriver/measured ")
	assert.Contains(t, out, "this machine has a GPU (/proc/driver/nvidia/gpus/0) that cannot be read: NVML: ")
	assert.Contains(t, out, "harness.WithoutDeviceMemory(reason)")
	assert.Contains(t, out, "--- PASS: TestChildWithoutDriver/accepted ")
}

func TestChildWithoutDriver(t *testing.T) {
	onlyInChild(t)
	t.Run("measured", func(t *testing.T) { harness.Start(t, openToy) })
	t.Run("accepted", func(t *testing.T) {
		harness.Start(t, openToy, harness.WithoutDeviceMemory("no driver in this image"))
	})
}
