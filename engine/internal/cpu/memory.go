package cpu

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"unsafe"

	"github.com/enginetest/enginetest/ledger"
)

// ErrFreed is wrapped in the error of Free for a Buffer that has been freed before.
var ErrFreed = errors.New("cpu: buffer freed twice")

var errAddressSpace = errors.New("more than the address space")

// OutOfMemory is an allocation that did not fit.
type OutOfMemory struct {
	Owner       string
	Bytes       int64 // asked for
	Free, Total int64 // of the allocator's capacity, or of the machine
	Cause       error // the system's, when it refused
}

func (e *OutOfMemory) Error() string {
	s := fmt.Sprintf("cpu: out of memory: %s asked for %s, %s of %s free",
		e.Owner, ledger.FormatBytes(e.Bytes), ledger.FormatBytes(e.Free), ledger.FormatBytes(e.Total))
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap is the system's error, when it refused.
func (e *OutOfMemory) Unwrap() error { return e.Cause }

// AllocatorConfig describes an [Allocator]. Its zero value is device cpu:0 with a ledger of its own
// and all the machine's memory.
type AllocatorConfig struct {
	Index    int            // of the device: "cpu:Index"
	Device   string         // its name; "" is "cpu:Index"
	Ledger   *ledger.Ledger // nil: a new one, without stacks
	Capacity int64          // bytes that may be live at once; 0: no limit but the machine's
	// Before is called before each allocation; its error is the allocation's. A place for fault
	// injection.
	Before func(owner string, bytes int64) error
}

// Allocator hands out device memory: mapped outside the Go heap, zeroed, entered in a ledger.
// Pages cost nothing until they are touched. It is safe for concurrent use.
type Allocator struct {
	device   string
	ledger   *ledger.Ledger
	capacity int64
	before   func(string, int64) error

	mu   sync.Mutex
	live int64
}

// NewAllocator makes an allocator.
func NewAllocator(c AllocatorConfig) *Allocator {
	if c.Ledger == nil {
		c.Ledger = ledger.New(false)
	}
	if c.Device == "" {
		c.Device = fmt.Sprintf("cpu:%d", c.Index)
	}
	return &Allocator{device: c.Device, ledger: c.Ledger, capacity: c.Capacity, before: c.Before}
}

// Device is "cpu:N".
func (a *Allocator) Device() string { return a.device }

// Ledger is where the allocator keeps its books.
func (a *Allocator) Ledger() *ledger.Ledger { return a.ledger }

// Memory is what could still be allocated, and the total, in bytes: of the capacity when there is
// one, and never more than what the machine, or the control group that this process lives in, has.
func (a *Allocator) Memory() (free, total int64, err error) {
	free, total, err = machineMemory()
	if a.capacity > 0 {
		a.mu.Lock()
		left := a.capacity - a.live
		a.mu.Unlock()
		if err != nil {
			return left, a.capacity, nil // the capacity is known even where the machine cannot be asked
		}
		return min(free, left), min(total, a.capacity), nil
	}
	return free, total, err
}

// Alloc maps this many zeroed bytes for an owner. Errors: what Before gave, or an *[OutOfMemory].
func (a *Allocator) Alloc(owner string, bytes int64) (*Buffer, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("cpu: %s asked for %d bytes", owner, bytes)
	}
	if a.before != nil {
		if err := a.before(owner, bytes); err != nil {
			return nil, err
		}
	}
	if err := a.reserve(owner, bytes); err != nil {
		return nil, err
	}
	var data []byte
	err := errAddressSpace
	if bytes <= math.MaxInt {
		data, err = mapMemory(int(bytes))
	}
	if err != nil {
		a.release(bytes)
		free, total, _ := a.Memory()
		return nil, &OutOfMemory{Owner: owner, Bytes: bytes, Free: free, Total: total, Cause: err}
	}
	b := &Buffer{data: data, from: a, owner: owner, size: bytes}
	b.id = a.ledger.Add(ledger.Holding{
		Owner: owner, Kind: "mapped", Device: a.device, Bytes: bytes,
		Addr: uintptr(unsafe.Pointer(unsafe.SliceData(data))),
	})
	return b, nil
}

func (a *Allocator) reserve(owner string, bytes int64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.capacity > 0 && bytes > a.capacity-a.live {
		return &OutOfMemory{Owner: owner, Bytes: bytes, Free: a.capacity - a.live, Total: a.capacity}
	}
	a.live += bytes
	return nil
}

func (a *Allocator) release(bytes int64) {
	a.mu.Lock()
	a.live -= bytes
	a.mu.Unlock()
}

// Buffer is one allocation. Its memory, and every slice made from it, is gone after Free: touching
// a slice then is a fault, not old data.
type Buffer struct {
	mu   sync.Mutex
	data []byte
	from *Allocator // nil once freed
	id   ledger.ID

	owner string
	size  int64
}

// Free releases the memory. It works once; then the error wraps [ErrFreed].
func (b *Buffer) Free() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.from
	if a == nil {
		return fmt.Errorf("%w: %s of %s", ErrFreed, ledger.FormatBytes(b.size), b.owner)
	}
	if err := unmapMemory(b.data); err != nil {
		return fmt.Errorf("cpu: unmapping %s of %s: %w", ledger.FormatBytes(b.size), b.owner, err)
	}
	b.data, b.from = nil, nil
	a.release(b.size)
	return a.ledger.Remove(b.id)
}

// Bytes is the memory, nil after Free. It is aligned to a page.
func (b *Buffer) Bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data
}

// PreferHugePages asks the system to back the memory with large pages, before it is touched: for
// what will be used whole, such as weights, whose reading gains a fifth in speed. A system that has
// none goes on with small ones.
func (b *Buffer) PreferHugePages() {
	b.mu.Lock()
	defer b.mu.Unlock()
	adviseHuge(b.data)
}

// Float32s views the memory as float32; bytes that make no whole element are left out.
func (b *Buffer) Float32s() []float32 {
	data := b.Bytes()
	return floats(unsafe.Pointer(unsafe.SliceData(data)), len(data)/4)
}
