//go:build linux && (amd64 || arm64)

package gpuwait

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/enginetest/enginetest/internal/dynlib"
)

// openNVMLTable is replaced by tests.
var openNVMLTable = newNVMLDyn

// newNVMLDyn calls NVML by the addresses of its functions, without cgo.
func newNVMLDyn(path string) (*nvmlTable, error) {
	so, err := dynlib.Open(path)
	if err != nil {
		return nil, fmt.Errorf("NVML: %w: no NVIDIA driver: %w", ErrCannotMeasure, err)
	}
	lib := &nvmlLibrary{so: so}
	if name := missing(lib.has); name != "" {
		return nil, lacks(path, name)
	}
	return &nvmlTable{
		has:       lib.has,
		init:      func() nvmlReturn { return lib.call("nvmlInit_v2") },
		shutdown:  func() nvmlReturn { return lib.call("nvmlShutdown") },
		errorText: lib.errorText,
		count: func() (int, nvmlReturn) {
			return lib.number("nvmlDeviceGetCount_v2")
		},
		handle: func(i int) (nvmlHandle, nvmlReturn) {
			return lib.device("nvmlDeviceGetHandleByIndex_v2", uintptr(i))
		},
		uuid:      func(h nvmlHandle) (string, nvmlReturn) { return lib.text("nvmlDeviceGetUUID", h) },
		name:      func(h nvmlHandle) (string, nvmlReturn) { return lib.text("nvmlDeviceGetName", h) },
		memory:    lib.memory,
		memoryV2:  lib.memoryV2,
		processes: lib.processes,

		migEnabled: lib.migEnabled,
		migCount: func(h nvmlHandle) (int, nvmlReturn) {
			return lib.number("nvmlDeviceGetMaxMigDeviceCount", h.(uintptr))
		},
		migHandle: func(h nvmlHandle, i int) (nvmlHandle, nvmlReturn) {
			return lib.device("nvmlDeviceGetMigDeviceHandleByIndex", h.(uintptr), uintptr(i))
		},
		gpuInstanceID: func(h nvmlHandle) (int, nvmlReturn) {
			return lib.number("nvmlDeviceGetGpuInstanceId", h.(uintptr))
		},
		computeInstanceID: func(h nvmlHandle) (int, nvmlReturn) {
			return lib.number("nvmlDeviceGetComputeInstanceId", h.(uintptr))
		},
	}, nil
}

// nvmlLibrary is an open libnvidia-ml.
type nvmlLibrary struct{ so uintptr }

func (l *nvmlLibrary) has(symbol string) bool { return dynlib.Symbol(l.so, symbol) != 0 }

// address finds a function by its name or, on an older driver, by its name without the version.
func (l *nvmlLibrary) address(symbol string) uintptr {
	if p := dynlib.Symbol(l.so, symbol); p != 0 {
		return p
	}
	if n := len(symbol) - len("_v2"); symbol[n:] == "_v2" {
		return dynlib.Symbol(l.so, symbol[:n])
	}
	return 0
}

// call calls a function; arguments that are addresses point to memory that the caller has pinned.
func (l *nvmlLibrary) call(symbol string, args ...uintptr) nvmlReturn {
	fn := l.address(symbol)
	if fn == 0 {
		return nvmlNoFunction
	}
	return nvmlReturn(int32(dynlib.Call(fn, args)))
}

// callWith calls a function with the address of out among its arguments: after before, and followed
// by after.
func callWith[T any](l *nvmlLibrary, symbol string, before []uintptr, out *T, after ...uintptr) nvmlReturn {
	var pin runtime.Pinner
	pin.Pin(out)
	defer pin.Unpin()
	args := append(append(before, uintptr(unsafe.Pointer(out))), after...)
	return l.call(symbol, args...)
}

func (l *nvmlLibrary) number(symbol string, args ...uintptr) (int, nvmlReturn) {
	n := new(uint32)
	r := callWith(l, symbol, args, n)
	return int(*n), r
}

func (l *nvmlLibrary) device(symbol string, args ...uintptr) (nvmlHandle, nvmlReturn) {
	h := new(uintptr)
	r := callWith(l, symbol, args, h)
	return *h, r
}

func (l *nvmlLibrary) text(symbol string, h nvmlHandle) (string, nvmlReturn) {
	text := new([96]byte) // NVML's largest buffer for names and UUIDs
	r := callWith(l, symbol, []uintptr{h.(uintptr)}, text, uintptr(len(text)))
	n := 0
	for n < len(text) && text[n] != 0 {
		n++
	}
	return string(text[:n]), r
}

func (l *nvmlLibrary) errorText(r nvmlReturn) string {
	address := dynlib.Call(l.address("nvmlErrorString"), []uintptr{uintptr(r)})
	p := *(**byte)(unsafe.Pointer(&address)) // a string of the library's own
	if p == nil {
		return "unknown error"
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}

func (l *nvmlLibrary) migEnabled(h nvmlHandle) (bool, nvmlReturn) {
	mode := new(struct{ now, pending uint32 })
	var pin runtime.Pinner
	pin.Pin(mode)
	defer pin.Unpin()
	r := l.call("nvmlDeviceGetMigMode", h.(uintptr), uintptr(unsafe.Pointer(&mode.now)),
		uintptr(unsafe.Pointer(&mode.pending)))
	return mode.now == 1, r
}

func (l *nvmlLibrary) memory(h nvmlHandle) (nvmlMemory, nvmlReturn) {
	m := new(struct{ total, free, used uint64 })
	r := callWith(l, "nvmlDeviceGetMemoryInfo", []uintptr{h.(uintptr)}, m)
	return nvmlMemory{total: m.total, used: m.used}, r
}

func (l *nvmlLibrary) memoryV2(h nvmlHandle) (nvmlMemory, nvmlReturn) {
	type memoryV2 struct {
		version                  uint32
		total, reserved, _, used uint64 // the third is free memory
	}
	m := &memoryV2{version: uint32(unsafe.Sizeof(memoryV2{})) | 2<<24}
	fn := dynlib.Symbol(l.so, "nvmlDeviceGetMemoryInfo_v2") // never the older function: its struct is smaller
	if fn == 0 {
		return nvmlMemory{}, nvmlNoFunction
	}
	r := callWith(l, "nvmlDeviceGetMemoryInfo_v2", []uintptr{h.(uintptr)}, m)
	return nvmlMemory{m.total, m.used, m.reserved}, r
}

// The elements of the process lists: the newer functions add the instances of a MIG slice.
type (
	nvmlProcessV1 struct {
		pid   uint32
		bytes uint64
	}
	nvmlProcessV2 struct {
		pid   uint32
		bytes uint64
		_, _  uint32 // GPU instance, compute instance
	}
)

func (l *nvmlLibrary) processes(list nvmlList, h nvmlHandle) ([]nvmlProcess, nvmlReturn) {
	for _, version := range []string{"_v3", "_v2"} {
		if fn := dynlib.Symbol(l.so, string(list)+version); fn != 0 {
			return listProcesses(fn, h, func(p nvmlProcessV2) nvmlProcess { return nvmlProcess{p.pid, p.bytes} })
		}
	}
	fn := dynlib.Symbol(l.so, string(list))
	if fn == 0 {
		return nil, nvmlNoFunction
	}
	return listProcesses(fn, h, func(p nvmlProcessV1) nvmlProcess { return nvmlProcess(p) })
}

// listProcesses asks again with more room while the list grows.
func listProcesses[T any](fn uintptr, h nvmlHandle, convert func(T) nvmlProcess) ([]nvmlProcess, nvmlReturn) {
	var pin runtime.Pinner
	defer pin.Unpin()
	n := new(uint32)
	pin.Pin(n)
	for room := uint32(16); ; room = max(2*room, *n+16) {
		list := make([]T, room)
		pin.Pin(&list[0])
		*n = room
		r := nvmlReturn(int32(dynlib.Call(fn, []uintptr{
			h.(uintptr), uintptr(unsafe.Pointer(n)),
			uintptr(unsafe.Pointer(&list[0])),
		})))
		if r == nvmlTooSmall && room < 1<<20 {
			continue
		}
		if r != nvmlSuccess {
			return nil, r
		}
		var out []nvmlProcess
		for _, p := range list[:min(*n, room)] {
			out = append(out, convert(p))
		}
		return out, nvmlSuccess
	}
}
