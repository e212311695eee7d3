package bench

import (
	"bytes"
	"errors"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/enginetest/enginetest/internal/checkpoint"
)

// bandwidthBytes is what each thread reads: more than its caches hold.
const bandwidthBytes = 128 << 20

// Bandwidth measures how many bytes per second several threads read from memory together.
type Bandwidth struct {
	parts [][]uint64 // one per thread
}

// NewBandwidth allocates the memory that is read; 0 threads means GOMAXPROCS.
func NewBandwidth(threads int) *Bandwidth {
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	b := &Bandwidth{}
	for range threads {
		part := make([]uint64, bandwidthBytes/8)
		for i := range part {
			part[i] = 0x0101010101010101 // touches each page; search looks for a zero byte
		}
		b.parts = append(b.parts, part)
	}
	return b
}

// Measure returns the better result of two readers, in bytes per second: the standard library's
// byte search, which is one vector stream, and a sum over four streams.
func (b *Bandwidth) Measure() float64 {
	return max(b.measure(search), b.measure(sum))
}

func (b *Bandwidth) measure(read func([]uint64) uint64) float64 {
	start := time.Now()
	var wg sync.WaitGroup
	for _, part := range b.parts {
		wg.Go(func() {
			if read(part) == 0 {
				panic("bench: read a byte that was never written")
			}
		})
	}
	wg.Wait()
	return float64(len(b.parts)*bandwidthBytes) / time.Since(start).Seconds()
}

// search returns 0 if there is a zero byte.
func search(part []uint64) uint64 {
	if bytes.IndexByte(unsafe.Slice((*byte)(unsafe.Pointer(&part[0])), 8*len(part)), 0) >= 0 {
		return 0
	}
	return 1
}

func sum(part []uint64) uint64 {
	quarter := len(part) / 4
	p, q, r, s := part[:quarter], part[quarter:2*quarter], part[2*quarter:3*quarter], part[3*quarter:4*quarter]
	var a, b, c, d uint64
	for i := range p {
		a, b, c, d = a+p[i], b+q[i], c+r[i], d+s[i]
	}
	return a | b | c | d
}

// StepBytes is what one decoding step reads of a checkpoint: every tensor, but only a row of an
// embedding that is not the output layer too.
func StepBytes(dir string) (n int64, err error) {
	c, err := checkpoint.Open(dir)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for _, name := range c.Names() {
		t, err := c.Tensor(name)
		if err != nil {
			return 0, err
		}
		if name != "model.embed_tokens.weight" || !c.Has("lm_head.weight") {
			n += int64(len(t.Data))
		}
	}
	return n, nil
}
