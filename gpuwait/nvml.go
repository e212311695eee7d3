//go:build linux && (amd64 || arm64)

package gpuwait

import (
	"errors"
	"fmt"
	"math"
	"sync"
)

// nvmlOpen is the one NVML of the process. Loading and unloading must not race with calls.
var nvmlOpen struct {
	mu   sync.Mutex
	path string
	refs int
	lib  *nvmlTable
}

type nvmlSource struct {
	lib    *nvmlTable
	mu     sync.RWMutex // held for reading during a call: Close waits
	closed bool
	dmu    sync.Mutex
	byUUID map[string]nvmlDevice
}

type nvmlDevice struct {
	Device
	handle nvmlHandle
	noV2   bool // the driver refused the v2 memory call for this device
}

// OpenNVML opens NVIDIA's management library; path "" is libnvidia-ml.so.1. A process can only open
// one path at a time. It needs no CUDA context and holds no device memory, but it does map libcuda
// and open the driver's files until Close.
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

func nvmlInit(path string) (*nvmlTable, error) {
	lib, err := openNVMLTable(path)
	if err != nil {
		return nil, err
	}
	if r := lib.init(); r != nvmlSuccess {
		return nil, lib.failed("nvmlInit", "", r)
	}
	return lib, nil
}

func lacks(path, symbol string) error {
	return fmt.Errorf("NVML: %w: %s has no %s: too old, or not NVML", ErrCannotMeasure, path, symbol)
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
	if r := s.lib.shutdown(); r != nvmlSuccess {
		return s.lib.failed("nvmlShutdown", "", r)
	}
	return nil
}

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
	n, r := s.lib.count()
	if r != nvmlSuccess {
		return nil, s.lib.failed("nvmlDeviceGetCount", "", r)
	}
	var list []Device
	found := map[string]nvmlDevice{}
	for i := range n {
		h, r := s.lib.handle(i)
		if r != nvmlSuccess {
			return nil, s.lib.failed("nvmlDeviceGetHandleByIndex", fmt.Sprintf("index %d", i), r)
		}
		gpu, err := s.describe(h, Device{Index: i, Vendor: NVIDIA})
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

func (s *nvmlSource) describe(h nvmlHandle, d Device) (Device, error) {
	uuid, r := s.lib.uuid(h)
	if r != nvmlSuccess {
		return d, s.lib.failed("nvmlDeviceGetUUID", fmt.Sprintf("index %d", d.Index), r)
	}
	d.UUID = uuid
	if name, r := s.lib.name(h); r == nvmlSuccess {
		d.Name = name
	}
	return d, nil
}

// slices lists the MIG devices of a GPU and marks the GPU when MIG is on.
func (s *nvmlSource) slices(gpu nvmlHandle, parent *Device) ([]nvmlDevice, error) {
	for _, name := range []string{
		"nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount",
		"nvmlDeviceGetMigDeviceHandleByIndex",
	} {
		if !s.lib.has(name) {
			return nil, nil // a driver from before MIG
		}
	}
	enabled, r := s.lib.migEnabled(gpu)
	if r == nvmlNotSupported || r == nvmlSuccess && !enabled {
		return nil, nil
	}
	if r != nvmlSuccess {
		return nil, s.lib.failed("nvmlDeviceGetMigMode", parent.UUID, r)
	}
	parent.Sliced = true
	n, r := s.lib.migCount(gpu)
	if r != nvmlSuccess {
		return nil, s.lib.failed("nvmlDeviceGetMaxMigDeviceCount", parent.UUID, r)
	}
	var out []nvmlDevice
	for i := range n {
		h, r := s.lib.migHandle(gpu, i)
		if r == nvmlNotFound || r == nvmlInvalid {
			continue // an empty place: the numbers have gaps
		}
		if r != nvmlSuccess {
			return nil, s.lib.failed("nvmlDeviceGetMigDeviceHandleByIndex", fmt.Sprintf("%s slice %d", parent.UUID, i),
				r)
		}
		d, err := s.describe(h, Device{Index: parent.Index, Vendor: NVIDIA, Parent: parent.UUID, MIG: i})
		if err != nil {
			return nil, err
		}
		if s.lib.has("nvmlDeviceGetGpuInstanceId") && s.lib.has("nvmlDeviceGetComputeInstanceId") {
			d.GI, _ = s.lib.gpuInstanceID(h)
			d.CI, _ = s.lib.computeInstanceID(h)
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
	if !d.noV2 && s.lib.has("nvmlDeviceGetMemoryInfo_v2") {
		m, r := s.lib.memoryV2(d.handle)
		switch r {
		case nvmlSuccess:
			return asMemory(d, m, false)
		case nvmlNotSupported, nvmlNoFunction, nvmlVersionMismatch, nvmlInvalid:
			s.dmu.Lock()
			d.noV2 = true
			s.byUUID[uuid] = d
			s.dmu.Unlock()
		default:
			return Memory{}, s.lib.failed("nvmlDeviceGetMemoryInfo_v2", uuid, r)
		}
	}
	m, r := s.lib.memory(d.handle)
	if r != nvmlSuccess {
		return Memory{}, s.lib.failed("nvmlDeviceGetMemoryInfo", uuid, r)
	}
	return asMemory(d, m, true)
}

func asMemory(d nvmlDevice, m nvmlMemory, withReserve bool) (Memory, error) {
	if max(m.total, m.used, m.reserved) > math.MaxInt64 {
		return Memory{}, fmt.Errorf("NVML: %s: %w: total %#x, used %#x, reserved %#x", d.UUID, ErrCannotMeasure,
			m.total, m.used, m.reserved)
	}
	return checked(d.Device, Memory{
		Total: int64(m.total), Used: int64(m.used), Reserved: int64(m.reserved), WithReserve: withReserve,
	})
}

// Holders adds the three lists that NVML keeps: compute, graphics and MPS clients. A process that
// is in two of them counts once.
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
	for _, list := range []nvmlList{nvmlCompute, nvmlGraphics, nvmlMPS} {
		stem := string(list)
		if !s.lib.has(stem) && !s.lib.has(stem+"_v2") && !s.lib.has(stem+"_v3") {
			continue
		}
		infos, r := s.lib.processes(list, d.handle)
		switch r {
		case nvmlSuccess:
			asked++
			out = mergeHolders(out, infos)
		case nvmlNotSupported: // MIG slices and some boards have no graphics list
		default:
			refused = append(refused, s.lib.failed(stem, uuid, r))
		}
	}
	if asked == 0 {
		return nil, errors.Join(append(refused, fmt.Errorf("NVML: %s: %w: this driver lists no processes", uuid,
			ErrCannotMeasure))...)
	}
	return out, nil
}

func mergeHolders(out []Holder, infos []nvmlProcess) []Holder {
next:
	for _, p := range infos {
		h := Holder{PID: int(p.pid)}
		if p.bytes <= math.MaxInt64 { // all ones: "not available"
			h.Bytes, h.Known = int64(p.bytes), true
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

// failed turns what a call returned into an error.
func (t *nvmlTable) failed(call, what string, r nvmlReturn) error {
	kind := ErrCannotMeasure
	if r == nvmlLost || r == nvmlResetRequired {
		kind = ErrLost
	}
	if what != "" {
		what = " (" + what + ")"
	}
	return fmt.Errorf("NVML: %w: %s%s: %s (%d)", kind, call, what, t.errorText(r), int32(r))
}
