//go:build linux && (amd64 || arm64)

package gpuwait

// NVMLTables names the ways in which this build can call NVML, the default first.
func NVMLTables() []string {
	var names []string
	for _, name := range []string{"dyn", "cgo"} {
		if nvmlTables[name] != nil {
			names = append(names, name)
		}
	}
	return names
}

// UseNVML makes OpenNVML call the library in that way.
func UseNVML(name string) { openNVMLTable = nvmlTables[name] }

var nvmlTables = map[string]func(string) (*nvmlTable, error){}

// FirstMemoryCall reads a device by NVML's first memory call, which counts the driver's reserve as
// used.
func FirstMemoryCall(src Source, uuid string) (Memory, error) {
	s := src.(*nvmlSource)
	d, err := s.device(uuid)
	if err != nil {
		return Memory{}, err
	}
	m, r := s.lib.memory(d.handle)
	if r != nvmlSuccess {
		return Memory{}, s.lib.failed("nvmlDeviceGetMemoryInfo", uuid, r)
	}
	return asMemory(d, m, true)
}
