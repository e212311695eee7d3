package cuda

import (
	"fmt"
	"math"
	"runtime"
	"unsafe"
)

// Dim is a size in blocks or threads; zero fields count as 1.
type Dim struct{ X, Y, Z int }

func (d Dim) words() (x, y, z uintptr) {
	return uintptr(max(d.X, 1)), uintptr(max(d.Y, 1)), uintptr(max(d.Z, 1))
}

// Launch says how a kernel is launched.
type Launch struct {
	Grid   Dim // blocks
	Block  Dim // threads per block
	Shared int // bytes of dynamic shared memory per block

	// These need a driver of CUDA 12.
	Cooperative  bool // all blocks resident at once: grid-wide barriers work
	Programmatic bool // may begin while the kernel before it ends (griddepcontrol, sm_90)
	Cluster      Dim  // blocks per cluster (sm_90); the zero value means no clusters
}

// Args is a kernel's argument block. It is made once and can be launched any number of times, its
// values changed in between; launches make no garbage. Values are set by position, in the order of
// the kernel's parameters.
type Args struct {
	values []uint64
	ptrs   []unsafe.Pointer // to values: a slice of real pointers, so that values follow it onto the heap
	memory []*Memory        // arguments that are checked at each launch
}

// NewArgs makes a block for n arguments, all zero. It is not inlined, so that the block is on the
// heap, where the driver's address of it stays right.
//
//go:noinline
func NewArgs(n int) *Args {
	a := &Args{values: make([]uint64, n), ptrs: make([]unsafe.Pointer, n), memory: make([]*Memory, n)}
	for i := range a.values {
		a.ptrs[i] = unsafe.Pointer(&a.values[i])
	}
	return a
}

func (a *Args) set(i int, v uint64) *Args {
	a.values[i], a.memory[i] = v, nil
	return a
}

// Memory sets argument i to the address of m's byte off. Each launch checks that m is live and the
// launching worker's own.
func (a *Args) Memory(i int, m *Memory, off int64) *Args {
	a.values[i], a.memory[i] = uint64(m.ptr)+uint64(off), m
	return a
}

// Ptr sets argument i to an address that is not checked.
func (a *Args) Ptr(i int, p DevicePtr) *Args { return a.set(i, uint64(p)) }

// Int32 sets argument i (int in C).
func (a *Args) Int32(i int, v int32) *Args { return a.set(i, uint64(uint32(v))) }

// Uint32 sets argument i.
func (a *Args) Uint32(i int, v uint32) *Args { return a.set(i, uint64(v)) }

// Int64 sets argument i (long long in C).
func (a *Args) Int64(i int, v int64) *Args { return a.set(i, uint64(v)) }

// Uint64 sets argument i.
func (a *Args) Uint64(i int, v uint64) *Args { return a.set(i, v) }

// Float32 sets argument i.
func (a *Args) Float32(i int, v float32) *Args { return a.set(i, uint64(math.Float32bits(v))) }

// Launch queues the kernel on s; nil is the default stream. Errors of the kernel itself show at a
// later call.
func (f *Function) Launch(s *Stream, l Launch, a *Args) error {
	const call = "Function.Launch"
	if err := f.enter(call); err != nil {
		return err
	}
	w := f.m.w
	stream, err := w.stream(call, s)
	if err != nil {
		return err
	}
	var none Args
	if a == nil {
		a = &none
	}
	if f.params >= 0 && len(a.ptrs) != f.params {
		return &misuseError{call, errArguments, fmt.Sprintf("%s takes %d, the block has %d", f.name, f.params,
			len(a.ptrs))}
	}
	for _, m := range a.memory {
		if m == nil {
			continue
		}
		if err := w.use(call, &m.resource); err != nil {
			return fmt.Errorf("%w, as an argument of %s", err, f.name)
		}
	}
	params := unsafe.Pointer(unsafe.SliceData(a.ptrs))
	gx, gy, gz := l.Grid.words()
	bx, by, bz := l.Block.words()
	if l.Cooperative || l.Programmatic || l.Cluster != (Dim{}) {
		w.config.fill(&l, stream)
		err = w.call(&w.d.fn.launchKernelEx, uintptr(unsafe.Pointer(&w.config)), f.handle, uintptr(params), 0)
	} else {
		err = w.call(&w.d.fn.launchKernel, f.handle, gx, gy, gz, bx, by, bz, uintptr(l.Shared), stream, uintptr(params),
			0)
	}
	runtime.KeepAlive(a)
	return err
}

// launchConfig is CUlaunchConfig with room for its attributes.
type launchConfig struct {
	grid, block [3]uint32
	shared      uint32
	_           uint32
	stream      uintptr
	attrs       unsafe.Pointer
	n           uint32
	_           uint32
	list        [3]launchAttr
}

// launchAttr is CUlaunchAttribute: an id and a union of 64 bytes.
type launchAttr struct {
	id    uint32
	_     uint32
	value [16]uint32
}

func (c *launchConfig) fill(l *Launch, stream uintptr) {
	*c = launchConfig{shared: uint32(l.Shared), stream: stream, attrs: unsafe.Pointer(&c.list)}
	for i, d := range [...]Dim{l.Grid, l.Block} {
		x, y, z := d.words()
		v := [3]uint32{uint32(x), uint32(y), uint32(z)}
		if i == 0 {
			c.grid = v
		} else {
			c.block = v
		}
	}
	add := func(id uint32, value ...uint32) {
		c.list[c.n].id = id
		copy(c.list[c.n].value[:], value)
		c.n++
	}
	if l.Cooperative {
		add(2, 1) // CU_LAUNCH_ATTRIBUTE_COOPERATIVE
	}
	if l.Cluster != (Dim{}) {
		x, y, z := l.Cluster.words()
		add(4, uint32(x), uint32(y), uint32(z)) // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
	}
	if l.Programmatic {
		add(6, 1) // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
	}
}
