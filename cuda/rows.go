package cuda

import (
	"errors"
	"fmt"
	"math"
	"unsafe"
)

// Rows are N pieces of device memory of Width bytes each, Pitch bytes apart, the first at byte Off.
// In host memory they lie one behind the other.
type Rows struct {
	Off, Pitch, Width int64
	N                 int
}

// bytes is the size of all rows together.
func (r Rows) bytes() int64 { return int64(r.N) * r.Width }

// CopyRowsToHost queues a copy of rows of src to dst, from byte off on. Src may be another worker's
// on the same device: they share its context. Who frees it has to wait for the copy.
func (s *Stream) CopyRowsToHost(dst *Pinned, off int64, src *Memory, rows Rows) error {
	return s.copyRows("Stream.CopyRowsToHost", dst, off, src, rows, true)
}

// CopyRowsToDevice queues a copy of src, from byte off on, to rows of dst, which may be another
// worker's: see CopyRowsToHost.
func (s *Stream) CopyRowsToDevice(dst *Memory, rows Rows, src *Pinned, off int64) error {
	return s.copyRows("Stream.CopyRowsToDevice", src, off, dst, rows, false)
}

// copy2D is CUDA_MEMCPY2D.
type copy2D struct {
	src, dst      copyEnd
	width, height uintptr
}

type copyEnd struct {
	x, y         uintptr
	kind         uint32
	_            uint32
	host, device uintptr
	array, pitch uintptr
}

func (s *Stream) copyRows(call string, p *Pinned, off int64, m *Memory, rows Rows, toHost bool) error {
	if err := s.enter(call); err != nil {
		return err
	}
	w := s.w
	if rows.N < 0 || rows.Width < 0 || rows.Pitch < rows.Width || rows.Pitch > math.MaxInt64/int64(max(rows.N, 1)) {
		return &misuseError{call, errArguments, fmt.Sprintf("%d rows of %d bytes, %d bytes apart", rows.N, rows.Width,
			rows.Pitch)}
	}
	if rows.bytes() == 0 {
		return nil
	}
	if err := w.useShared(call, m); err != nil {
		return err
	}
	device, err := m.span(call, rows.Off, int64(rows.N-1)*rows.Pitch+rows.Width)
	if err != nil {
		return err
	}
	host, err := p.span(w, call, off, rows.bytes())
	if err != nil {
		return err
	}
	c := &w.rows // part of the worker, which is on the heap: see Worker.result
	*c = copy2D{width: uintptr(rows.Width), height: uintptr(rows.N)}
	at := copyEnd{kind: 1, host: host, pitch: uintptr(rows.Width)}
	on := copyEnd{kind: 2, device: device, pitch: uintptr(rows.Pitch)}
	if c.src, c.dst = at, on; toHost {
		c.src, c.dst = on, at
	}
	err = w.call(&w.d.fn.copy2DAsync, uintptr(unsafe.Pointer(c)), s.handle)
	if rows.Pitch <= w.dev.maxPitch || !errors.Is(err, codeInvalidValue) {
		return err
	}
	for range rows.N { // further apart than a driver may take: 580 does (measured with 3 GiB)
		if toHost {
			err = w.call(&w.d.fn.copyDtoHAsync, host, device, uintptr(rows.Width), s.handle)
		} else {
			err = w.call(&w.d.fn.copyHtoDAsync, device, host, uintptr(rows.Width), s.handle)
		}
		if err != nil {
			return err
		}
		host, device = host+uintptr(rows.Width), device+uintptr(rows.Pitch)
	}
	return nil
}

// useShared is use for memory that may be of another worker in the same context.
func (w *Worker) useShared(call string, m *Memory) error {
	if m == nil {
		return &misuseError{call, errArguments, "nil memory"}
	}
	if m.w == nil || m.w.key() != w.key() {
		return w.use(call, &m.resource)
	}
	if m.freed.Load() {
		return &misuseError{call, ErrUseAfterFree, m.String()}
	}
	return nil
}
