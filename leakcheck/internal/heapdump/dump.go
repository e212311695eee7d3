// Package heapdump takes a heap dump of the running process (runtime/debug.WriteHeapDump) and
// answers graph questions about it: which object lies at an address, what points where, and the
// shortest way from a root to an object.
//
// The format is that of Go 1.7 to 1.26 (header "go1.7 heap dump"). It holds every object's bytes
// and the exact places of its pointers, stacks with their frames, the data segments, finalizers and
// allocation samples; it names no types. Anything unknown in it is an error.
package heapdump

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrFormat is wrapped by the error of a dump that this package cannot read.
var ErrFormat = errors.New("heapdump: unknown heap dump format")

// Segment is the data or bss segment of the main module.
type Segment struct {
	Addr    uint64
	Data    []byte
	pointer int // position of the pointer list
}

// Frame is one frame of a goroutine's stack, from its lowest address.
type Frame struct {
	Goroutine int // index in Dump.Goroutines
	SP        uint64
	Data      []byte
	Entry, PC uint64
	Func      string
	pointer   int
}

// Goroutine is one goroutine; Frames are innermost first.
type Goroutine struct {
	Addr, ID, GoPC uint64
	Status         uint64 // 1 runnable, 2 running, 3 in a system call, 4 waiting
	System         bool
	Wait           string
	Context        uint64 // closure of a function about to run
	Frames         []int
}

// Finalizer is a finalizer that is set on (or, when queued, will run for) an object.
type Finalizer struct {
	Object, Func, Code, ArgType, ObjectType uint64
	Queued                                  bool
}

// Site is one frame of an allocation's stack.
type Site struct {
	Func, File string
	Line       uint64
}

// Dump is a parsed heap dump. Objects are numbered from 0 in the order of the dump.
type Dump struct {
	Segments   []Segment
	Frames     []Frame
	Goroutines []Goroutine
	Finalizers []Finalizer
	Itabs      map[uint64]uint64 // itab address to type descriptor address
	HeapLo     uint64
	HeapHi     uint64
	Version    string

	data    []byte
	read    func(n int) // told that the first n bytes have been read
	close   func() error
	index   index
	samples map[uint64]uint64 // object address to bucket
	buckets map[uint64][]Site
}

// Close releases the dump's memory.
func (d *Dump) Close() error {
	if d.close == nil {
		return nil
	}
	return d.close()
}

type cursor struct {
	b []byte
	p int
}

//go:norace
func (c *cursor) uint() uint64 {
	if b := c.b[c.p:]; len(b) > 0 && b[0] < 0x80 {
		c.p++
		return uint64(b[0])
	}
	return c.long()
}

//go:norace
func (c *cursor) long() uint64 {
	v, n := binary.Uvarint(c.b[c.p:])
	if n <= 0 {
		panic(fmt.Errorf("%w: bad number at offset %d", ErrFormat, c.p))
	}
	c.p += n
	return v
}

//go:norace
func (c *cursor) bytes() []byte {
	n := c.uint()
	if n > uint64(len(c.b)-c.p) {
		panic(fmt.Errorf("%w: %d bytes at offset %d run over the end", ErrFormat, n, c.p))
	}
	b := c.b[c.p : c.p+int(n)]
	c.p += int(n)
	return b
}

func (c *cursor) skip(n int) {
	for range n {
		c.uint()
	}
}

// pointers skips a pointer list and returns its position.
//
//go:norace
func (c *cursor) pointers() int {
	start := c.p
	for c.uint() != 0 {
		c.uint()
	}
	return start
}

const header = "go1.7 heap dump\n"

// Parse reads a dump. The bytes must stay until the Dump is closed.
//
//go:norace
func Parse(data []byte) (d *Dump, err error) { return parse(data, nil, nil) }

// window is how much of a dump is read before its pages are handed back.
const window = 4 << 20

//go:norace
func parse(data []byte, spare []uint32, read func(int)) (d *Dump, err error) {
	defer func() {
		if e := recover(); e != nil {
			d, err = nil, fmt.Errorf("%w: %v", ErrFormat, e)
		}
	}()
	if len(data) < len(header) || string(data[:len(header)]) != header {
		return nil, fmt.Errorf("%w: it starts with %q, not %q", ErrFormat, data[:min(len(data), len(header))], header)
	}
	d = &Dump{
		data: data, read: read, Itabs: map[uint64]uint64{}, samples: map[uint64]uint64{},
		buckets: map[uint64][]Site{},
	}
	d.index.store.edges.free = spare[:0]
	c := &cursor{data, len(header)}
	for next := window; ; {
		start := c.p
		tag := c.uint()
		if tag == 1 {
			d.index.add(c, start)
			if d.read != nil && c.p >= next {
				d.read(next)
				next += window
			}
			continue
		}
		d.index.endRun()
		if tag == 0 {
			break
		}
		if !d.record(c, tag) {
			return nil, fmt.Errorf("%w: record of unknown kind %d at offset %d", ErrFormat, tag, c.p)
		}
	}
	if d.index.objects == 0 || len(d.Goroutines) == 0 || len(d.Segments) == 0 {
		return nil, fmt.Errorf("%w: %d objects, %d goroutines, %d segments", ErrFormat, d.index.objects, len(d.Goroutines),
			len(d.Segments))
	}
	return d, nil
}

// record reads any other record.
func (d *Dump) record(c *cursor, tag uint64) bool {
	switch tag {
	case 2: // other root: never written by this runtime
		c.bytes()
		c.uint()
	case 3: // type
		c.skip(2)
		c.bytes()
		c.uint()
	case 4:
		g := Goroutine{Addr: c.uint()}
		c.uint()
		g.ID, g.GoPC, g.Status, g.System = c.uint(), c.uint(), c.uint(), c.uint() != 0
		c.skip(2)
		g.Wait = string(c.bytes())
		g.Context = c.uint()
		c.skip(3)
		d.Goroutines = append(d.Goroutines, g)
	case 5:
		f := Frame{Goroutine: len(d.Goroutines) - 1, SP: c.uint()}
		c.skip(2)
		f.Data = c.bytes()
		f.Entry, f.PC = c.uint(), c.uint()
		c.uint()
		f.Func = string(c.bytes())
		f.pointer = c.pointers()
		g := &d.Goroutines[f.Goroutine]
		g.Frames = append(g.Frames, len(d.Frames))
		d.Frames = append(d.Frames, f)
	case 6: // parameters
		if big, size := c.uint(), c.uint(); big != 0 || size != 8 {
			panic("only little-endian 64-bit systems")
		}
		d.HeapLo, d.HeapHi = c.uint(), c.uint()
		c.bytes()
		d.Version = string(c.bytes())
		c.uint()
		if d.HeapHi < d.HeapLo || d.HeapHi >= 1<<48 {
			panic("heap bounds")
		}
		d.index.open(d.HeapLo, d.HeapHi)
	case 7, 11:
		d.Finalizers = append(d.Finalizers, Finalizer{c.uint(), c.uint(), c.uint(), c.uint(), c.uint(), tag == 11})
	case 8:
		a := c.uint()
		d.Itabs[a] = c.uint()
	case 9: // thread
		c.skip(3)
	case 10: // memory statistics
		c.skip(24 + 256 + 1)
	case 12, 13:
		s := Segment{Addr: c.uint(), Data: c.bytes()}
		s.pointer = c.pointers()
		d.Segments = append(d.Segments, s)
	case 14: // deferred call
		c.skip(7)
	case 15: // panic
		c.skip(6)
	case 16:
		id := c.uint()
		c.uint()
		sites := make([]Site, min(c.uint(), 1<<16))
		for i := range sites {
			sites[i] = Site{string(c.bytes()), string(c.bytes()), c.uint()}
		}
		d.buckets[id] = sites
		c.skip(2)
	case 17:
		a := c.uint()
		d.samples[a] = c.uint()
	default:
		return false
	}
	return true
}
