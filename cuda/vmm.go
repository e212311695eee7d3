package cuda

import (
	"errors"
	"fmt"
	"unsafe"
)

// mapping is the state of virtual memory: the range stays, physical memory comes and goes.
type mapping struct {
	size   int64   // of the range: a multiple of the granularity
	handle uintptr // of the physical memory; 0: none
	mapped bool    // the handle is mapped to the range
	ready  bool    // and the device may use it
}

// allocationProp is CUmemAllocationProp for memory of one device.
type allocationProp struct {
	allocType, handleTypes   int32
	locationType, locationID int32
	meta                     uintptr
	flags                    [8]byte
}

// accessDesc is CUmemAccessDesc.
type accessDesc struct{ locationType, locationID, flags int32 }

// AllocVMM takes size bytes through the virtual memory calls (cuMemCreate), rounded up to the
// granularity (2 MiB). The address stays the same when [Memory.Unmap] gives the physical memory
// back and [Memory.Map] takes it again, so graphs and views that hold it stay right: what an engine
// needs to sleep. It outlives the context, so it has to be freed; Close does it when the owner did
// not.
func (w *Worker) AllocVMM(owner string, size int64) (*Memory, error) {
	if err := w.enterAlloc("AllocVMM", size); err != nil {
		return nil, err
	}
	prop := w.allocationProp()
	if err := w.callWith(&w.d.fn.vmmGranularity, w.result(0), uintptr(unsafe.Pointer(prop)), 0); err != nil {
		return nil, err
	}
	grain := int64(w.out[0])
	m := &Memory{size: size, vmm: &mapping{size: (size + grain - 1) / grain * grain}}
	if err := w.call(&w.d.fn.vmmReserve, w.result(0), uintptr(m.vmm.size), 0, 0, 0); err != nil {
		return nil, err
	}
	m.ptr = DevicePtr(w.out[0])
	m.outlives = true
	w.add(&m.resource, KindVMM, owner, 0, uintptr(m.ptr), func() error {
		if err := w.unmapMemory(m); err != nil {
			return err
		}
		return w.call(&w.d.fn.vmmAddressFree, uintptr(m.ptr), uintptr(m.vmm.size))
	})
	if err := w.mapMemory(m); err != nil {
		return nil, errors.Join(err, m.Free()) // what cannot be freed now stays in the ledger for Close
	}
	return m, nil
}

// Unmap releases the physical memory of VMM memory and keeps the address. Until Map, calls refuse
// it (ErrUnmapped), and work that was queued or captured with its address is an illegal address.
func (m *Memory) Unmap() error {
	if err := m.enterVMM("Memory.Unmap", true); err != nil {
		return err
	}
	if err := m.w.call(&m.w.d.fn.ctxSynchronize); err != nil { // nothing may still be reading it
		return err
	}
	return m.w.unmapMemory(m)
}

// Map takes physical memory again, with undefined content. When there is none, m stays unmapped and
// Map can be tried again.
func (m *Memory) Map() error {
	if err := m.enterVMM("Memory.Map", false); err != nil {
		return err
	}
	return m.w.mapMemory(m)
}

// Mapped reports whether m has physical memory. Only VMM memory ever has none.
func (m *Memory) Mapped() bool { return m.vmm == nil || m.vmm.ready }

func (m *Memory) enterVMM(call string, mapped bool) error {
	if err := m.enter(call); err != nil {
		return err
	}
	if m.vmm == nil {
		return &MisuseError{call, ErrArguments, fmt.Sprintf("%s is not VMM memory", m)}
	}
	if m.vmm.ready != mapped {
		return &MisuseError{call, ErrArguments, fmt.Sprintf("%s: mapped is %t already", m, !mapped)}
	}
	return nil
}

func (w *Worker) allocationProp() *allocationProp {
	return &allocationProp{allocType: 1, locationType: 1, locationID: w.dev.handle} // pinned, on this device
}

// mapMemory takes physical memory for m's range, maps it and opens it to the device; all or
// nothing.
func (w *Worker) mapMemory(m *Memory) error {
	if err := w.unmapMemory(m); err != nil { // what an earlier failure left
		return err
	}
	prop, size, ptr := w.allocationProp(), uintptr(m.vmm.size), uintptr(m.ptr)
	if err := w.callWith(&w.d.fn.vmmCreate, w.result(0), size, uintptr(unsafe.Pointer(prop)), 0); err != nil {
		return w.noMemory(KindVMM, m.holding.Owner, m.vmm.size, err)
	}
	m.vmm.handle = uintptr(w.out[0])
	m.resize(m.vmm.size)
	if err := w.call(&w.d.fn.vmmMap, ptr, size, 0, m.vmm.handle, 0); err != nil {
		return errors.Join(err, w.unmapMemory(m))
	}
	m.vmm.mapped = true
	const readWrite = 3
	access := &accessDesc{1, w.dev.handle, readWrite}
	if err := w.callWith(&w.d.fn.vmmSetAccess, ptr, size, uintptr(unsafe.Pointer(access)), 1); err != nil {
		return errors.Join(err, w.unmapMemory(m))
	}
	m.vmm.ready = true
	return nil
}

// unmapMemory undoes mapMemory, as far as that had come; after a failure it can be tried again.
func (w *Worker) unmapMemory(m *Memory) error {
	if m.vmm.mapped {
		m.vmm.ready = false
		if err := w.call(&w.d.fn.vmmUnmap, uintptr(m.ptr), uintptr(m.vmm.size)); err != nil {
			return err
		}
		m.vmm.mapped = false
	}
	if m.vmm.handle != 0 {
		if err := w.call(&w.d.fn.vmmRelease, m.vmm.handle); err != nil {
			return err
		}
		m.vmm.handle = 0
		m.resize(0)
	}
	return nil
}
