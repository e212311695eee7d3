//go:build linux && cgo && (amd64 || arm64)

package gpuwait

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// go-nvml says what NVML's functions return: the tests run with it as well.
func init() { nvmlTables["cgo"] = newNVMLCgo }

// newNVMLCgo calls NVML through go-nvml. It binds lazily: a call to a missing function, and any
// call before Init, ends the process. So what is needed is looked up before.
func newNVMLCgo(path string) (*nvmlTable, error) {
	so := dl.New(path, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := so.Open(); err != nil {
		return nil, fmt.Errorf("NVML: %w: no NVIDIA driver: %v", ErrCannotMeasure, err) //nolint:errorlint // the loader's text
	}
	defer func() { _ = so.Close() }()
	if name := missing(func(symbol string) bool { return so.Lookup(symbol) == nil }); name != "" {
		return nil, lacks(path, name)
	}
	lib := nvml.New(nvml.WithLibraryPath(path))
	device := func(h nvmlHandle) nvml.Device { return h.(nvml.Device) }
	t := &nvmlTable{
		has:       func(symbol string) bool { return lib.Extensions().LookupSymbol(symbol) == nil },
		init:      func() nvmlReturn { return nvmlReturn(lib.Init()) },
		shutdown:  func() nvmlReturn { return nvmlReturn(lib.Shutdown()) },
		errorText: func(r nvmlReturn) string { return nvml.Return(r).Error() },
		count:     func() (int, nvmlReturn) { return returns(lib.DeviceGetCount()) },
		uuid:      func(h nvmlHandle) (string, nvmlReturn) { return returns(device(h).GetUUID()) },
		name:      func(h nvmlHandle) (string, nvmlReturn) { return returns(device(h).GetName()) },
		migCount:  func(h nvmlHandle) (int, nvmlReturn) { return returns(device(h).GetMaxMigDeviceCount()) },
		processes: cgoProcesses,

		gpuInstanceID:     func(h nvmlHandle) (int, nvmlReturn) { return returns(device(h).GetGpuInstanceId()) },
		computeInstanceID: func(h nvmlHandle) (int, nvmlReturn) { return returns(device(h).GetComputeInstanceId()) },
	}
	t.handle = func(i int) (nvmlHandle, nvmlReturn) { return returns(lib.DeviceGetHandleByIndex(i)) }
	t.migHandle = func(h nvmlHandle, i int) (nvmlHandle, nvmlReturn) {
		return returns(device(h).GetMigDeviceHandleByIndex(i))
	}
	t.migEnabled = func(h nvmlHandle) (bool, nvmlReturn) {
		mode, _, r := device(h).GetMigMode()
		return mode == nvml.DEVICE_MIG_ENABLE, nvmlReturn(r)
	}
	t.memory = func(h nvmlHandle) (nvmlMemory, nvmlReturn) {
		m, r := device(h).GetMemoryInfo()
		return nvmlMemory{total: m.Total, used: m.Used}, nvmlReturn(r)
	}
	t.memoryV2 = func(h nvmlHandle) (nvmlMemory, nvmlReturn) {
		m, r := device(h).GetMemoryInfo_v2()
		return nvmlMemory{m.Total, m.Used, m.Reserved}, nvmlReturn(r)
	}
	return t, nil
}

// returns converts the result of a call of go-nvml.
func returns[T any](v T, r nvml.Return) (T, nvmlReturn) { return v, nvmlReturn(r) }

func cgoProcesses(list nvmlList, h nvmlHandle) ([]nvmlProcess, nvmlReturn) {
	d := h.(nvml.Device)
	infos, r := map[nvmlList]func() ([]nvml.ProcessInfo, nvml.Return){
		nvmlCompute:  d.GetComputeRunningProcesses,
		nvmlGraphics: d.GetGraphicsRunningProcesses,
		nvmlMPS:      d.GetMPSComputeRunningProcesses,
	}[list]()
	var out []nvmlProcess
	for _, p := range infos {
		out = append(out, nvmlProcess{p.Pid, p.UsedGpuMemory})
	}
	return out, nvmlReturn(r)
}
