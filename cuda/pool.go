package cuda

import (
	"errors"
	"fmt"
	"math"
	"unsafe"
)

// Pool is a source of stream-ordered memory of its own. Neither it nor what it holds ends with the
// context.
type Pool struct {
	resource
	handle uintptr
	blocks map[*Memory]struct{} // those that are live
}

// PoolStats are bytes.
type PoolStats struct {
	Used, UsedHigh         int64 // allocated from the pool
	Reserved, ReservedHigh int64 // taken from the device
}

// NewPool makes a pool. It gives memory back to the device at each synchronisation, unless
// SetReleaseThreshold lets it keep some.
func (w *Worker) NewPool(owner string) (*Pool, error) {
	if err := w.enter("NewPool"); err != nil {
		return nil, err
	}
	props := new(struct { // CUmemPoolProps
		allocType, handleTypes   int32
		locationType, locationID int32
		security, maxSize        uintptr
		reserved                 [56]byte
	})
	props.allocType, props.locationType, props.locationID = 1, 1, w.dev.handle // pinned, on this device
	if err := w.callWith(&w.d.fn.poolCreate, w.result(0), uintptr(unsafe.Pointer(props))); err != nil {
		return nil, err
	}
	p := &Pool{handle: uintptr(w.out[0]), blocks: map[*Memory]struct{}{}}
	p.outlives = true
	w.add(&p.resource, KindPool, owner, 0, p.handle, func() error { return w.call(&w.d.fn.poolDestroy, p.handle) })
	return p, nil
}

// Alloc takes size bytes from the pool in the order of the stream's work; nil is the default
// stream.
func (p *Pool) Alloc(owner string, size int64, s *Stream) (*Memory, error) {
	const call = "Pool.Alloc"
	if err := p.enter(call); err != nil {
		return nil, err
	}
	w := p.w
	if err := w.enterAlloc(call, size); err != nil {
		return nil, err
	}
	stream, err := w.stream(call, s)
	if err != nil {
		return nil, err
	}
	if err := w.call(&w.d.fn.memAllocFromPool, w.result(0), uintptr(size), p.handle, stream); err != nil {
		return nil, w.noMemory(KindAsync, owner, size, err)
	}
	m := w.asyncMemory(owner, size, s)
	p.blocks[m] = struct{}{}
	release := m.release
	m.release = func() error {
		err := release()
		if err == nil {
			delete(p.blocks, m)
		}
		return err
	}
	return m, nil
}

// SetReleaseThreshold lets the pool keep up to n bytes that are not in use.
func (p *Pool) SetReleaseThreshold(n int64) error {
	if err := p.enter("Pool.SetReleaseThreshold"); err != nil {
		return err
	}
	p.w.out[0] = uint64(n)
	// CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
	return p.w.call(&p.w.d.fn.poolSetAttr, p.handle, 4, uintptr(unsafe.Pointer(&p.w.out[0])))
}

// Trim returns memory that is not in use back to the device, down to keep bytes.
func (p *Pool) Trim(keep int64) error {
	if err := p.enter("Pool.Trim"); err != nil {
		return err
	}
	return p.w.call(&p.w.d.fn.poolTrim, p.handle, uintptr(keep))
}

// Stats asks the driver how much the pool holds.
func (p *Pool) Stats() (PoolStats, error) {
	if err := p.enter("Pool.Stats"); err != nil {
		return PoolStats{}, err
	}
	return p.w.poolStats(p.handle)
}

// Close destroys the pool. With blocks still live it refuses: they would stay allocated until the
// process ends, beyond anybody's reach.
func (p *Pool) Close() error {
	if p == nil {
		return &MisuseError{"Pool.Close", ErrArguments, "nil pool"}
	}
	if err := p.w.enterDead("Pool.Close"); err != nil {
		return err
	}
	if n := len(p.blocks); n > 0 && p.w.dead.Load() == nil {
		return &MisuseError{"Pool.Close", ErrArguments, fmt.Sprintf("%d of its blocks are still live", n)}
	}
	return p.free("Pool.Close")
}

// DevicePoolStats is how much the device's own pool (AllocAsync's) holds, in this process.
func (w *Worker) DevicePoolStats() (PoolStats, error) {
	if err := w.enter("DevicePoolStats"); err != nil {
		return PoolStats{}, err
	}
	pool, err := w.devicePool()
	if err != nil {
		return PoolStats{}, err
	}
	return w.poolStats(pool)
}

// TrimDevicePool returns what the device's own pool keeps and no one uses back to the device. Close
// does it as well.
func (w *Worker) TrimDevicePool() error {
	if err := w.enter("TrimDevicePool"); err != nil {
		return err
	}
	return w.trimDevicePool()
}

// SetDevicePoolThreshold lets the device's own pool keep up to n bytes that are not in use;
// negative means any number.
func (w *Worker) SetDevicePoolThreshold(n int64) error {
	if err := w.enter("SetDevicePoolThreshold"); err != nil {
		return err
	}
	pool, err := w.devicePool()
	if err != nil {
		return err
	}
	if n < 0 {
		n = math.MaxInt64
	}
	w.out[0] = uint64(n)
	return w.call(&w.d.fn.poolSetAttr, pool, 4, uintptr(unsafe.Pointer(&w.out[0])))
}

func (w *Worker) devicePool() (uintptr, error) {
	err := w.call(&w.d.fn.devicePool, w.result(0), uintptr(w.dev.handle))
	return uintptr(w.out[0]), err
}

// trimDevicePool trims the device's pool and what graphs with allocations of their own (libraries
// make them) keep.
func (w *Worker) trimDevicePool() error {
	pool, err := w.devicePool()
	if err == nil {
		err = w.call(&w.d.fn.poolTrim, pool, 0)
	}
	graphs := w.call(&w.d.fn.graphMemTrim, uintptr(w.dev.handle))
	for _, e := range []error{err, graphs} {
		if e != nil && !errors.Is(e, ErrNotSupported) {
			return e
		}
	}
	return nil
}

func (w *Worker) poolStats(pool uintptr) (PoolStats, error) {
	var s PoolStats
	for _, q := range [...]struct {
		key uintptr // CUmemPool_attribute
		to  *int64
	}{{5, &s.Reserved}, {6, &s.ReservedHigh}, {7, &s.Used}, {8, &s.UsedHigh}} {
		if err := w.call(&w.d.fn.poolGetAttr, pool, q.key, w.result(0)); err != nil {
			return s, err
		}
		*q.to = int64(w.out[0])
	}
	return s, nil
}
