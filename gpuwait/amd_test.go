package gpuwait_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/gpuwait"
)

// amdTree is a machine with two AMD GPUs whose card numbers and ROCm's order differ, a display
// connector, and an Intel GPU.
func amdTree(t *testing.T) string {
	root := t.TempDir()
	put := func(path, text string) {
		file := filepath.Join(root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	card := func(n, minor int, pci, unique string, total, used int64) {
		dir := fmt.Sprintf("sys/class/drm/card%d/device/", n)
		put(dir+"mem_info_vram_total", fmt.Sprintln(total))
		put(dir+"mem_info_vram_used", fmt.Sprintln(used))
		put(dir+"uevent", "DRIVER=amdgpu\nPCI_SLOT_NAME="+pci+"\n")
		put(dir+"product_name", "AMD Instinct MI300X\n")
		put(fmt.Sprintf("%sdrm/renderD%d/dev", dir, minor), "")
		if unique != "" {
			put(dir+"unique_id", unique+"\n")
		}
	}
	card(1, 129, "0000:03:00.0", "deadbeef00000001", 192*gib, 90*gib)
	card(2, 128, "0000:83:00.0", "", 16*gib, gib) // a consumer board
	put("sys/class/drm/card1-DP-1/status", "connected\n")
	put("sys/class/drm/card0/device/vendor", "0x8086\n")
	put("sys/class/kfd/kfd/topology/nodes/0/gpu_id", "0\n")
	put("sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 64\ndrm_render_minor 0\n")
	put("sys/class/kfd/kfd/topology/nodes/1/gpu_id", "7001\n")
	put("sys/class/kfd/kfd/topology/nodes/1/properties", "simd_count 304\ndrm_render_minor 128\n")
	put("sys/class/kfd/kfd/topology/nodes/2/gpu_id", "7002\n")
	put("sys/class/kfd/kfd/topology/nodes/2/properties", "drm_render_minor 129\n")

	put("sys/class/kfd/kfd/proc/501/vram_7002", fmt.Sprintln(80*gib)) // a ROCm process
	put("sys/class/kfd/kfd/proc/501/vram_7001", "0\n")
	client := func(pid, fd int, pci, id, keys string) {
		put(fmt.Sprintf("proc/%d/fdinfo/%d", pid, fd),
			"pos:\t0\ndrm-driver:\tamdgpu\ndrm-client-id:\t"+id+"\ndrm-pdev:\t"+pci+"\n"+keys)
	}
	// also a render client: the larger stands
	client(501, 9, "0000:03:00.0", "4", "drm-memory-vram:\t1024 KiB\n")
	client(777, 3, "0000:03:00.0", "5", "drm-total-vram:\t9000 MiB\ndrm-resident-vram:\t1000 MiB\n") // a desktop
	// the same client through a second descriptor
	client(777, 4, "0000:03:00.0", "5", "drm-total-vram:\t9000 MiB\ndrm-resident-vram:\t1000 MiB\n")
	// and another client of it
	client(777, 5, "0000:03:00.0", "6", "drm-resident-vram:\t24 MiB\n")
	// on the other card, in bytes
	client(777, 6, "0000:83:00.0", "7", "drm-resident-vram:\t4096\n")
	put("proc/888/fdinfo/3", "drm-driver:\ti915\ndrm-pdev:\t0000:03:00.0\ndrm-memory-vram:\t5 MiB\n") // another driver
	return root
}

func TestAMD(t *testing.T) {
	root := amdTree(t)
	src, err := gpuwait.OpenAMD(root)
	require.NoError(t, err)
	defer src.Close()
	all, err := src.Devices()
	require.NoError(t, err)
	const big, board = "GPU-deadbeef00000001", "PCI-0000:83:00.0"
	assert.Equal(t, []gpuwait.Device{
		{UUID: board, Name: "AMD Instinct MI300X", Index: 0, Vendor: gpuwait.AMD},
		{UUID: big, Name: "AMD Instinct MI300X", Index: 1, Vendor: gpuwait.AMD},
	}, all, "ROCm's order, not the cards'")

	m, err := src.Memory(big)
	require.NoError(t, err)
	assert.Equal(t, gpuwait.Memory{Total: 192 * gib, Used: 90 * gib, WithReserve: true}, m)
	hs, err := src.Holders(big)
	require.NoError(t, err)
	assert.Equal(t, []gpuwait.Holder{holder(501, 80*gib), holder(777, 1024*mib)}, hs)
	hs, err = src.Holders(board)
	require.NoError(t, err)
	assert.Equal(t, []gpuwait.Holder{holder(777, 4096)}, hs)

	_, err = gpuwait.Clear(t.Context(), src, gpuwait.Ratio(0.1), gpuwait.Devices("1"), gpuwait.Timeout(0))
	require.ErrorContains(t, err, "80.0 GiB  pid 501")
	require.ErrorContains(t, err, "9.0 GiB  unattributed (includes the driver's own reserve")

	used := filepath.Join(root, "sys/class/drm/card1/device/mem_info_vram_used")
	require.NoError(t, os.WriteFile(used, []byte("garbage\n"), 0o600))
	_, err = src.Memory(big)
	require.ErrorIs(t, err, gpuwait.ErrCannotMeasure)
	require.NoError(t, os.Remove(used))
	_, err = src.Memory(big)
	require.ErrorIs(t, err, gpuwait.ErrLost, "the card went away")
	_, err = src.Memory("GPU-0")
	require.ErrorIs(t, err, gpuwait.ErrNoDevice)

	_, err = gpuwait.OpenAMD(t.TempDir())
	require.ErrorIs(t, err, gpuwait.ErrCannotMeasure)
}
