//go:build linux && cgo

package gpuwait

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// nvmlNeeds are the entry points without which nothing can be measured, each with its older name. go-nvml binds lazily: a call to a missing
// symbol, or any call before Init, ends the process. So they are looked up before Init, and every other one before its first use.
var nvmlNeeds = [][]string{
	{"nvmlInit_v2", "nvmlInit"},
	{"nvmlShutdown"},
	{"nvmlErrorString"},
	{"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"},
	{"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"},
	{"nvmlDeviceGetUUID"},
	{"nvmlDeviceGetName"},
	{"nvmlDeviceGetMemoryInfo"},
}

// nvmlOpen is the one NVML of the process: go-nvml keeps its function table in package variables, so a second library cannot be loaded beside
// the first, and loading and unloading must not race with calls.
var nvmlOpen struct {
	mu   sync.Mutex
	path string
	refs int
	lib  nvml.Interface
}

type nvmlSource struct {
	lib    nvml.Interface
	mu     sync.RWMutex // held for reading during a call: Close waits
	closed bool
	dmu    sync.Mutex
	byUUID map[string]nvmlDevice
}

type nvmlDevice struct {
	Device
	handle nvml.Device
	noV2   bool // the driver refused the v2 memory call for this device
}

// OpenNVML opens NVIDIA's management library; path "" is libnvidia-ml.so.1. A process can only open one path at a time. It needs no CUDA
// context and holds no device memory, but it does map libcuda and open the driver's files until Close.
func OpenNVML(path string) (SourceCloser, error) {
	if path == "" {
		path = "libnvidia-ml.so.1"
	}
	nvmlOpen.mu.Lock()
	defer nvmlOpen.mu.Unlock()
	if nvmlOpen.refs > 0 && nvmlOpen.path != path {
		return nil, fmt.Errorf("NVML is open already from %s: close it before opening %s", nvmlOpen.path, path)
	}
	if nvmlOpen.refs == 0 {
		lib, err := nvmlInit(path)
		if err != nil {
			return nil, err
		}
		nvmlOpen.lib, nvmlOpen.path = lib, path
	}
	nvmlOpen.refs++
	s := &nvmlSource{lib: nvmlOpen.lib}
	return s, nil
}

func nvmlInit(path string) (nvml.Interface, error) {
	so := dl.New(path, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := so.Open(); err != nil {
		return nil, fmt.Errorf("NVML: %w: no NVIDIA driver: %v", ErrCannotMeasure, err) //nolint:errorlint // the loader's text, nothing to unwrap
	}
	defer func() { _ = so.Close() }()
	for _, names := range nvmlNeeds {
		found := false
		for _, name := range names {
			found = found || so.Lookup(name) == nil
		}
		if !found {
			return nil, fmt.Errorf("NVML: %w: %s has no %s: too old, or not NVML", ErrCannotMeasure, path, names[0])
		}
	}
	lib := nvml.New(nvml.WithLibraryPath(path))
	if r := lib.Init(); r != nvml.SUCCESS {
		return nil, nvmlError("nvmlInit", "", r)
	}
	return lib, nil
}

// Close is idempotent; the last Close of a process shuts NVML down.
func (s *nvmlSource) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	nvmlOpen.mu.Lock()
	defer nvmlOpen.mu.Unlock()
	if nvmlOpen.refs--; nvmlOpen.refs > 0 {
		return nil
	}
	nvmlOpen.lib = nil
	if r := s.lib.Shutdown(); r != nvml.SUCCESS {
		return nvmlError("nvmlShutdown", "", r)
	}
	return nil
}

func (s *nvmlSource) has(symbol string) bool { return s.lib.Extensions().LookupSymbol(symbol) == nil }

// enter keeps NVML open for the length of one call.
func (s *nvmlSource) enter() (leave func(), err error) {
	s.mu.RLock()
	if s.closed {
		s.mu.RUnlock()
		return nil, fmt.Errorf("NVML: %w: the source is closed", ErrCannotMeasure)
	}
	return s.mu.RUnlock, nil
}

func (s *nvmlSource) Devices() ([]Device, error) {
	leave, err := s.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	n, r := s.lib.DeviceGetCount()
	if r != nvml.SUCCESS {
		return nil, nvmlError("nvmlDeviceGetCount", "", r)
	}
	var list []Device
	found := map[string]nvmlDevice{}
	for i := range n {
		h, r := s.lib.DeviceGetHandleByIndex(i)
		if r != nvml.SUCCESS {
			return nil, nvmlError("nvmlDeviceGetHandleByIndex", fmt.Sprintf("index %d", i), r)
		}
		gpu, err := nvmlDescribe(h, Device{Index: i, Vendor: NVIDIA})
		if err != nil {
			return nil, err
		}
		slices, err := s.slices(h, &gpu)
		if err != nil {
			return nil, err
		}
		for _, d := range append([]nvmlDevice{{Device: gpu, handle: h}}, slices...) {
			list = append(list, d.Device)
			found[d.UUID] = d
		}
	}
	s.dmu.Lock()
	s.byUUID = found
	s.dmu.Unlock()
	return list, nil
}

func nvmlDescribe(h nvml.Device, d Device) (Device, error) {
	uuid, r := h.GetUUID()
	if r != nvml.SUCCESS {
		return d, nvmlError("nvmlDeviceGetUUID", fmt.Sprintf("index %d", d.Index), r)
	}
	d.UUID = uuid
	if name, r := h.GetName(); r == nvml.SUCCESS {
		d.Name = name
	}
	return d, nil
}

// slices lists the MIG devices of a GPU and marks the GPU when MIG is on.
func (s *nvmlSource) slices(gpu nvml.Device, parent *Device) ([]nvmlDevice, error) {
	for _, name := range []string{"nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"} {
		if !s.has(name) {
			return nil, nil // a driver from before MIG
		}
	}
	mode, _, r := gpu.GetMigMode()
	if r == nvml.ERROR_NOT_SUPPORTED || r == nvml.SUCCESS && mode != nvml.DEVICE_MIG_ENABLE {
		return nil, nil
	}
	if r != nvml.SUCCESS {
		return nil, nvmlError("nvmlDeviceGetMigMode", parent.UUID, r)
	}
	parent.Sliced = true
	n, r := gpu.GetMaxMigDeviceCount()
	if r != nvml.SUCCESS {
		return nil, nvmlError("nvmlDeviceGetMaxMigDeviceCount", parent.UUID, r)
	}
	var out []nvmlDevice
	for i := range n {
		h, r := gpu.GetMigDeviceHandleByIndex(i)
		if r == nvml.ERROR_NOT_FOUND || r == nvml.ERROR_INVALID_ARGUMENT {
			continue // an empty place: the numbers have gaps
		}
		if r != nvml.SUCCESS {
			return nil, nvmlError("nvmlDeviceGetMigDeviceHandleByIndex", fmt.Sprintf("%s slice %d", parent.UUID, i), r)
		}
		d, err := nvmlDescribe(h, Device{Index: parent.Index, Vendor: NVIDIA, Parent: parent.UUID, MIG: i})
		if err != nil {
			return nil, err
		}
		if s.has("nvmlDeviceGetGpuInstanceId") && s.has("nvmlDeviceGetComputeInstanceId") {
			d.GI, _ = h.GetGpuInstanceId()
			d.CI, _ = h.GetComputeInstanceId()
		}
		out = append(out, nvmlDevice{Device: d, handle: h})
	}
	return out, nil
}

func (s *nvmlSource) device(uuid string) (nvmlDevice, error) {
	s.dmu.Lock()
	d, ok := s.byUUID[uuid]
	s.dmu.Unlock()
	if ok {
		return d, nil
	}
	if _, err := s.Devices(); err != nil { // also the first call, and a MIG slice made since
		return nvmlDevice{}, err
	}
	s.dmu.Lock()
	defer s.dmu.Unlock()
	if d, ok = s.byUUID[uuid]; !ok {
		return d, fmt.Errorf("NVML: %w: %q", ErrNoDevice, uuid)
	}
	return d, nil
}

func (s *nvmlSource) Memory(uuid string) (Memory, error) {
	d, err := s.device(uuid)
	if err != nil {
		return Memory{}, err
	}
	leave, err := s.enter()
	if err != nil {
		return Memory{}, err
	}
	defer leave()
	if !d.noV2 && s.has("nvmlDeviceGetMemoryInfo_v2") {
		m, r := d.handle.GetMemoryInfo_v2()
		switch r {
		case nvml.SUCCESS:
			return nvmlMemory(d, m.Total, m.Used, m.Reserved, false)
		case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_ARGUMENT_VERSION_MISMATCH, nvml.ERROR_INVALID_ARGUMENT:
			s.dmu.Lock()
			d.noV2 = true
			s.byUUID[uuid] = d
			s.dmu.Unlock()
		default:
			return Memory{}, nvmlError("nvmlDeviceGetMemoryInfo_v2", uuid, r)
		}
	}
	m, r := d.handle.GetMemoryInfo()
	if r != nvml.SUCCESS {
		return Memory{}, nvmlError("nvmlDeviceGetMemoryInfo", uuid, r)
	}
	return nvmlMemory(d, m.Total, m.Used, 0, true)
}

func nvmlMemory(d nvmlDevice, total, used, reserved uint64, withReserve bool) (Memory, error) {
	if total > math.MaxInt64 || used > math.MaxInt64 || reserved > math.MaxInt64 {
		return Memory{}, fmt.Errorf("NVML: %s: %w: total %#x, used %#x, reserved %#x", d.UUID, ErrCannotMeasure, total, used, reserved)
	}
	return checked(d.Device, Memory{Total: int64(total), Used: int64(used), Reserved: int64(reserved), WithReserve: withReserve})
}

// Holders adds the three lists that NVML keeps: compute, graphics and MPS clients. A process that is in two of them counts once.
func (s *nvmlSource) Holders(uuid string) ([]Holder, error) {
	d, err := s.device(uuid)
	if err != nil {
		return nil, err
	}
	leave, err := s.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	var out []Holder
	var refused []error
	asked := 0
	for _, q := range []struct {
		symbol string
		list   func() ([]nvml.ProcessInfo, nvml.Return)
	}{
		{"nvmlDeviceGetComputeRunningProcesses", d.handle.GetComputeRunningProcesses},
		{"nvmlDeviceGetGraphicsRunningProcesses", d.handle.GetGraphicsRunningProcesses},
		{"nvmlDeviceGetMPSComputeRunningProcesses", d.handle.GetMPSComputeRunningProcesses},
	} {
		if !s.has(q.symbol) && !s.has(q.symbol+"_v2") && !s.has(q.symbol+"_v3") {
			continue
		}
		infos, r := q.list()
		switch r {
		case nvml.SUCCESS:
			asked++
			out = mergeHolders(out, infos)
		case nvml.ERROR_NOT_SUPPORTED: // MIG slices and some boards have no graphics list
		default:
			refused = append(refused, nvmlError(q.symbol, uuid, r))
		}
	}
	if asked == 0 {
		return nil, errors.Join(append(refused, fmt.Errorf("NVML: %s: %w: this driver lists no processes", uuid, ErrCannotMeasure))...)
	}
	return out, nil
}

func mergeHolders(out []Holder, infos []nvml.ProcessInfo) []Holder {
next:
	for _, p := range infos {
		h := Holder{PID: int(p.Pid)}
		if p.UsedGpuMemory <= math.MaxInt64 { // all ones: "not available"
			h.Bytes, h.Known = int64(p.UsedGpuMemory), true
		}
		for i := range out {
			if out[i].PID == h.PID {
				out[i].Bytes = max(out[i].Bytes, h.Bytes)
				out[i].Known = out[i].Known || h.Known
				continue next
			}
		}
		out = append(out, h)
	}
	return out
}

// nvmlError turns a Return into an error; nvml.SUCCESS itself is a non-nil error, so a Return is never returned as one.
func nvmlError(call, what string, r nvml.Return) error {
	kind := ErrCannotMeasure
	if r == nvml.ERROR_GPU_IS_LOST || r == nvml.ERROR_RESET_REQUIRED {
		kind = ErrLost
	}
	if what != "" {
		what = " (" + what + ")"
	}
	return fmt.Errorf("NVML: %w: %s%s: %s (%d)", kind, call, what, r.Error(), int32(r))
}
