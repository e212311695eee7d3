package cuda

import "fmt"

// DevicePtr is an address in device memory.
type DevicePtr uint64

// Memory is a piece of device memory.
type Memory struct {
	resource
	ptr  DevicePtr
	size int64
}

// Ptr is the address of the first byte. It stays what it was after Free: prefer [Args.Memory],
// which checks.
func (m *Memory) Ptr() DevicePtr { return m.ptr }

// Size is the number of bytes asked for.
func (m *Memory) Size() int64 { return m.size }

// Alloc takes size bytes of device memory (cuMemAlloc): at least 256-byte aligned, content
// undefined, given back when the context ends.
func (w *Worker) Alloc(owner string, size int64) (*Memory, error) {
	if err := w.enterAlloc("Alloc", size); err != nil {
		return nil, err
	}
	if err := w.call(&w.d.fn.memAlloc, w.result(0), uintptr(size)); err != nil {
		return nil, w.noMemory(kindPlain, owner, size, err)
	}
	m := &Memory{ptr: DevicePtr(w.out[0]), size: size}
	w.add(&m.resource, kindPlain, owner, size, uintptr(m.ptr), func() error {
		return w.call(&w.d.fn.memFree, uintptr(m.ptr))
	})
	return m, nil
}

// Free releases the memory. Freeing twice, on another thread or after Close is an error.
func (m *Memory) Free() error {
	if m == nil {
		return &misuseError{"Memory.Free", errArguments, "nil memory"}
	}
	return m.free("Memory.Free")
}

func (w *Worker) enterAlloc(call string, size int64) error {
	if err := w.enter(call); err != nil {
		return err
	}
	if size <= 0 {
		return &misuseError{call, errArguments, fmt.Sprintf("%d bytes", size)}
	}
	if w.capturing { // it would spoil the capture, or become part of the graph
		return &misuseError{call, errCapturing, w.name}
	}
	return nil
}

// noMemory makes the error of an allocation that failed.
func (w *Worker) noMemory(kind, owner string, size int64, err error) error {
	e := &AllocError{Worker: w.name, Owner: owner, Kind: kind, Bytes: size, Holdings: w.ledger.Holdings(), Err: err}
	onDevice := kind != kindPinned && kind != kindLocked
	if onDevice && w.dead.Load() == nil && w.call(&w.d.fn.memGetInfo, w.result(0), w.result(1)) == nil {
		e.Free, e.Total = int64(w.out[0]), int64(w.out[1])
	}
	return e
}

// span checks that [off, off+n) lies in m and returns its address.
func (m *Memory) span(call string, off, n int64) (uintptr, error) {
	if off < 0 || n < 0 || off > m.size-n {
		return 0, outOfRange(call, off, n, m.size, &m.resource)
	}
	return uintptr(m.ptr) + uintptr(off), nil
}

func outOfRange(call string, off, n, size int64, r *resource) error {
	return &misuseError{call, errRange, fmt.Sprintf("%d bytes from byte %d on, of %d of %s", n, off, size, r)}
}
