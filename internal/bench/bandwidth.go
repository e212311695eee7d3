package bench

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/internal/cpu"
)

// bandwidthBytes is what each thread reads: more than its caches hold.
const bandwidthBytes = 128 << 20

// Bandwidth measures how many bytes a second some threads read from memory together.
type Bandwidth struct {
	pool   *cpu.Pool
	buffer *cpu.Buffer
	w      cpu.Matrix // all of it
	x, y   []float32
}

// NewBandwidth takes the memory that will be read; 0 threads are GOMAXPROCS.
func NewBandwidth(threads int) (*Bandwidth, error) {
	pool, err := cpu.NewPool(threads)
	if err != nil {
		return nil, err
	}
	const cols = 1 << 12
	buffer, err := cpu.NewAllocator(cpu.AllocatorConfig{}).Alloc("bandwidth", int64(bandwidthBytes*pool.Threads()))
	if err != nil {
		pool.Close()
		return nil, err
	}
	buffer.PreferHugePages()
	data := buffer.Bytes()
	b := &Bandwidth{pool: pool, buffer: buffer, w: cpu.Matrix{Data: data, Type: cpu.F32, Rows: len(data) / 4 / cols, Cols: cols}}
	for i := range b.w.Data {
		b.w.Data[i] = 1 // so that its pages are there
	}
	b.x, b.y = make([]float32, cols), make([]float32, b.w.Rows)
	return b, nil
}

// Measure is the better of two readers, in bytes a second: the standard library's byte search, and one matrix times a vector (a single stream
// does not always fill the memory's pipes).
func (b *Bandwidth) Measure() float64 {
	best := 0.0
	for _, read := range []func(){b.search, func() { cpu.MatMul(b.pool, b.y, b.x, 1, b.w, nil) }} {
		start := time.Now()
		read()
		best = max(best, float64(len(b.w.Data))/time.Since(start).Seconds())
	}
	return best
}

func (b *Bandwidth) search() {
	var wg sync.WaitGroup
	for m := range slices.Chunk(b.w.Data, bandwidthBytes) { // one a thread
		wg.Go(func() {
			if bytes.IndexByte(m, 0) >= 0 {
				panic("bench: a byte that was never written")
			}
		})
	}
	wg.Wait()
}

// Close ends the threads and gives the memory back.
func (b *Bandwidth) Close() error {
	b.pool.Close()
	return b.buffer.Free()
}

// StepBytes is what one decoding step reads of a checkpoint: every tensor, but only a row of an embedding that is not the output layer too.
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
