package cuda

import "unsafe"

// Copies and fills. Offsets and sizes are bytes, checked against the memory's bounds. Copies
// without a stream return when the data has arrived; those with one are only queued, so their host
// side has to be [Pinned], which stays where it is. A nil stream is the default one. Streams made
// by NewStream do not wait for the default stream, nor it for them.

// CopyFrom copies src to m from byte off on, and waits for it.
func (m *Memory) CopyFrom(off int64, src []byte) error {
	if err := m.enter("Memory.CopyFrom"); err != nil {
		return err
	}
	dst, err := m.span("Memory.CopyFrom", off, int64(len(src)))
	if err != nil || len(src) == 0 {
		return err
	}
	if err := m.w.callWith(&m.w.d.fn.copyHtoD, dst, uintptr(unsafe.Pointer(&src[0])), uintptr(len(src))); err != nil {
		return err
	}
	// The driver returns once it has staged pageable memory; streams that do not wait for the
	// default one could still read the old data.
	return m.w.call(&m.w.d.fn.streamSync, 0)
}

// CopyTo copies the bytes of m from off on to dst, and waits for it.
func (m *Memory) CopyTo(dst []byte, off int64) error {
	if err := m.enter("Memory.CopyTo"); err != nil {
		return err
	}
	src, err := m.span("Memory.CopyTo", off, int64(len(dst)))
	if err != nil || len(dst) == 0 {
		return err
	}
	return m.w.callWith(&m.w.d.fn.copyDtoH, uintptr(unsafe.Pointer(&dst[0])), src, uintptr(len(dst)))
}

// CopyFromAsync queues a copy of n bytes of src to m.
func (m *Memory) CopyFromAsync(off int64, src *Pinned, srcOff, n int64, s *Stream) error {
	const call = "Memory.CopyFromAsync"
	dst, host, stream, err := m.hostCopy(call, off, src, srcOff, n, s)
	if err != nil || n == 0 {
		return err
	}
	return m.w.call(&m.w.d.fn.copyHtoDAsync, dst, host, uintptr(n), stream)
}

// CopyToAsync queues a copy of n bytes of m to dst.
func (m *Memory) CopyToAsync(dst *Pinned, dstOff, off, n int64, s *Stream) error {
	const call = "Memory.CopyToAsync"
	src, host, stream, err := m.hostCopy(call, off, dst, dstOff, n, s)
	if err != nil || n == 0 {
		return err
	}
	return m.w.call(&m.w.d.fn.copyDtoHAsync, host, src, uintptr(n), stream)
}

func (m *Memory) hostCopy(call string, off int64, p *Pinned, hostOff, n int64,
	s *Stream,
) (dev, host, stream uintptr, err error) {
	if err = m.enter(call); err != nil {
		return
	}
	if dev, err = m.span(call, off, n); err != nil {
		return
	}
	if host, err = p.span(m.w, call, hostOff, n); err != nil {
		return
	}
	stream, err = m.w.stream(call, s)
	return
}

// CopyDevice queues a copy of n bytes between two pieces of the same device's memory.
func (m *Memory) CopyDevice(off int64, src *Memory, srcOff, n int64, s *Stream) error {
	const call = "Memory.CopyDevice"
	if err := m.enter(call); err != nil {
		return err
	}
	if src == nil {
		return &misuseError{call, errArguments, "nil source"}
	}
	if err := m.w.use(call, &src.resource); err != nil {
		return err
	}
	to, err := m.span(call, off, n)
	if err != nil {
		return err
	}
	from, err := src.span(call, srcOff, n)
	if err != nil {
		return err
	}
	stream, err := m.w.stream(call, s)
	if err != nil || n == 0 {
		return err
	}
	return m.w.call(&m.w.d.fn.copyDtoDAsync, to, from, uintptr(n), stream)
}

// Fill queues setting n bytes from off on to value.
func (m *Memory) Fill(off, n int64, value byte, s *Stream) error {
	const call = "Memory.Fill"
	if err := m.enter(call); err != nil {
		return err
	}
	p, err := m.span(call, off, n)
	if err != nil {
		return err
	}
	stream, err := m.w.stream(call, s)
	if err != nil || n == 0 {
		return err
	}
	return m.w.call(&m.w.d.fn.setD8Async, p, uintptr(value), uintptr(n), stream)
}
