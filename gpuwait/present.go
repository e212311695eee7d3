package gpuwait

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// machineRoot is the root of /sys, /dev and /proc; tests replace it.
var machineRoot = "/"

// evidence lists what shows that this machine has a GPU of NVIDIA or AMD, whether or not it can be
// measured: devices on the PCI bus, device files, and what the drivers list. A machine without any
// has no such GPU.
func evidence(root string) []string {
	var found []string
	pci, _ := filepath.Glob(filepath.Join(root, "sys/bus/pci/devices/*"))
	for _, dir := range pci {
		if name := gpuOnBus(dir); name != "" {
			found = append(found, name)
		}
	}
	for _, pattern := range []string{
		"dev/nvidia[0-9]*", "dev/nvidiactl", "dev/kfd", "dev/dxg",
		"proc/driver/nvidia/gpus/*",
	} {
		files, _ := filepath.Glob(filepath.Join(root, pattern))
		for _, f := range files {
			found = append(found, strings.TrimPrefix(f, strings.TrimSuffix(root, "/")))
		}
	}
	return found
}

// gpuOnBus names a PCI device that is a GPU: a display controller or processing accelerator of one
// of the vendors.
func gpuOnBus(dir string) string {
	class := readLine(filepath.Join(dir, "class"))
	if !strings.HasPrefix(class, "0x03") && !strings.HasPrefix(class, "0x12") {
		return ""
	}
	vendor := map[string]string{"0x10de": "NVIDIA", "0x1002": "AMD"}[readLine(filepath.Join(dir, "vendor"))]
	if vendor == "" {
		return ""
	}
	driver := "without a driver"
	if link, err := os.Readlink(filepath.Join(dir, "driver")); err == nil {
		driver = "driver " + filepath.Base(link)
	}
	return fmt.Sprintf("%s GPU at PCI %s (%s)", vendor, filepath.Base(dir), driver)
}

// shorten keeps a list readable: a machine may have many.
func shorten(list []string, most int) string {
	if len(list) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
	}
	return strings.Join(list, ", ")
}
