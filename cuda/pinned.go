package cuda

import (
	"errors"
	"unsafe"
)

// Pinned is page-locked host memory: the only host side of copies that are queued on a stream (55
// GB/s instead of 10).
type Pinned struct {
	resource
	bytes []byte
	dev   DevicePtr
}

// AllocPinned takes size bytes of page-locked host memory, seen by the device as well (0.3 s for 1
// GiB).
func (w *Worker) AllocPinned(owner string, size int64) (*Pinned, error) {
	if err := w.enterAlloc("AllocPinned", size); err != nil {
		return nil, err
	}
	const portable, mapped = 1, 2 // CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_DEVICEMAP
	if err := w.call(&w.d.fn.memHostAlloc, w.result(0), uintptr(size), portable|mapped); err != nil {
		return nil, w.noMemory(kindPinned, owner, size, err)
	}
	host := uintptr(w.out[0])
	b := unsafe.Slice(*(**byte)(unsafe.Pointer(&w.out[0])), size)
	free := func() error { return w.call(&w.d.fn.memFreeHost, host) }
	return w.pinned(kindPinned, owner, b, int64(len(b)), host, free)
}

// Register page-locks memory that exists already, such as a mapped file or a large Go slice (35 ms
// for 1 GiB), until Free. The slice has to stay as it is that long. The ledger has it with 0 bytes
// (kindLocked).
func (w *Worker) Register(owner string, b []byte) (*Pinned, error) {
	if err := w.enterAlloc("Register", int64(len(b))); err != nil {
		return nil, err
	}
	const portable, mapped = 1, 2 // CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTREGISTER_DEVICEMAP
	if err := w.callWith(&w.d.fn.memHostRegister, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
		portable|mapped); err != nil {
		return nil, w.noMemory(kindLocked, owner, int64(len(b)), err)
	}
	host := uintptr(unsafe.Pointer(&b[0]))
	return w.pinned(kindLocked, owner, b, 0, host, func() error { return w.call(&w.d.fn.memHostUnreg, host) })
}

func (w *Worker) pinned(kind, owner string, b []byte, entered int64, host uintptr, free func() error) (*Pinned, error) {
	p := &Pinned{bytes: b}
	w.add(&p.resource, kind, owner, entered, host, free)
	if err := w.call(&w.d.fn.memHostDevicePtr, w.result(0), host, 0); err != nil {
		return nil, errors.Join(err, p.Free()) // what cannot be freed now stays in the ledger for Close
	}
	p.dev = DevicePtr(w.out[0])
	return p, nil
}

// Bytes is the memory, for any goroutine; nil after Free. A slice that was taken before Free must
// not be used after it: that is a segmentation fault.
func (p *Pinned) Bytes() []byte {
	if p.freed.Load() {
		return nil
	}
	return p.bytes
}

// Ptr is the memory's address as the device sees it.
func (p *Pinned) Ptr() DevicePtr { return p.dev }

// Free releases the memory, or unregisters it.
func (p *Pinned) Free() error {
	if p == nil {
		return &misuseError{"Pinned.Free", errArguments, "nil memory"}
	}
	return p.free("Pinned.Free")
}

// span checks that [off, off+n) lies in p, on w, and returns its host address.
func (p *Pinned) span(w *Worker, call string, off, n int64) (uintptr, error) {
	if p == nil {
		return 0, &misuseError{call, errArguments, "nil pinned memory"}
	}
	if err := w.use(call, &p.resource); err != nil {
		return 0, err
	}
	if size := int64(len(p.bytes)); off < 0 || n < 0 || off > size-n {
		return 0, outOfRange(call, off, n, size, &p.resource)
	}
	return p.holding.Addr + uintptr(off), nil
}
