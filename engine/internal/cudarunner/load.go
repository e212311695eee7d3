package cudarunner

import (
	"errors"
	"slices"
	"sync"

	"github.com/enginetest/enginetest/cuda"
)

const (
	readers   = 8
	chunkSize = 4 << 20 // of a pinned buffer, unless a row is longer
	chunks    = 12
)

// chunk is some rows of a tensor on their way to the device.
type chunk struct {
	piece
	first, n int
	buffer   int
}

// load copies the matrices to the device: readers fill pinned buffers from the checkpoint's mapped
// files, this thread sends each on and has it packed on the device.
func (r *weightStore) load(b *binder) (err error) {
	if err := r.weights.Fill(0, b.bytes, 0, r.stream); err != nil {
		return err
	}
	s, err := r.newLoader(b)
	if err != nil {
		return errors.Join(err, r.drop(s))
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	defer func() {
		close(done)
		wg.Wait()
		err = errors.Join(err, r.stream.Synchronize(), r.drop(s))
	}()
	jobs, ready, free := make(chan chunk), make(chan chunk), make(chan int, chunks)
	for i := range s.host {
		free <- i
	}
	wg.Go(func() {
		defer close(jobs)
		s.split(b.pieces, func(c chunk) bool {
			select {
			case jobs <- c:
				return true
			case <-done:
				return false
			}
		})
	})
	for range readers {
		wg.Go(func() {
			for c := range jobs {
				select {
				case c.buffer = <-free:
				case <-done:
					return
				}
				c.copyRows(s.host[c.buffer].Bytes(), c.first, c.n)
				select {
				case ready <- c:
				case <-done:
					return
				}
			}
		})
	}
	if err := s.send(r, s.count(b.pieces), ready, free); err != nil {
		return err
	}
	if err := r.stream.Synchronize(); err != nil { // the fill of the paddings comes before
		return err
	}
	return r.uploadVectors(b.vectors)
}

// loader is what loading needs for its time.
type loader struct {
	size   int64
	host   []*cuda.Pinned
	device *cuda.Memory
	fences []*cuda.Event
}

func (r *weightStore) newLoader(b *binder) (*loader, error) {
	s := &loader{}
	row := int64(0) // a buffer holds at least the longest row, and of small tensors no more than the largest
	for _, p := range b.pieces {
		row, s.size = max(row, int64(p.row())), max(s.size, int64(p.row()*p.src.Shape[0]))
	}
	s.size = max(row, min(s.size, chunkSize))
	n := min(chunks, s.count(b.pieces))
	for range n {
		h, err := r.worker.AllocPinned("staging", s.size)
		if err != nil {
			return s, err
		}
		s.host = append(s.host, h)
		e, err := r.worker.NewFence("staging")
		if err != nil {
			return s, err
		}
		s.fences = append(s.fences, e)
	}
	var err error
	s.device, err = r.worker.Alloc("staging", s.size*int64(n))
	return s, err
}

// drop releases what loading needed. What would not go is the runner's, and tried again with the
// rest.
func (r *weightStore) drop(s *loader) error {
	err := s.free()
	if err != nil {
		r.own("staging", s.size*int64(len(s.host)), s.free)
	}
	return err
}

// free can be called again after a failure.
func (s *loader) free() error {
	var errs []error
	freed := func(err error) bool {
		if err != nil {
			errs = append(errs, err)
		}
		return err == nil
	}
	if s.device != nil && freed(s.device.Free()) {
		s.device = nil
	}
	s.fences = slices.DeleteFunc(s.fences, func(e *cuda.Event) bool { return freed(e.Close()) })
	s.host = slices.DeleteFunc(s.host, func(h *cuda.Pinned) bool { return freed(h.Free()) })
	return errors.Join(errs...)
}

// split cuts the pieces into chunks until yield is false.
func (s *loader) split(pieces []piece, yield func(chunk) bool) {
	for _, p := range pieces {
		most := int(s.size) / p.row()
		for at := 0; at < p.src.Shape[0]; at += most {
			if !yield(chunk{piece: p, first: at, n: min(most, p.src.Shape[0]-at)}) {
				return
			}
		}
	}
}

func (s *loader) count(pieces []piece) int {
	n := 0
	s.split(pieces, func(chunk) bool { n++; return true })
	return n
}

// send takes n filled buffers to the device. A buffer is free again when the device has packed it.
func (s *loader) send(r *weightStore, n int, ready <-chan chunk, free chan<- int) error {
	var under []int // buffers under way, oldest first
	for n > 0 {
		var c chunk
		select {
		case c = <-ready:
		default:
			if len(under) > 0 {
				if err := s.fences[under[0]].Synchronize(); err != nil {
					return err
				}
				free <- under[0]
				under = under[1:]
				continue
			}
			c = <-ready
		}
		if err := s.pack(r, c); err != nil {
			return err
		}
		under = append(under, c.buffer)
		n--
	}
	return nil
}

func (s *loader) pack(r *weightStore, c chunk) error {
	bytes := int64(c.row() * c.n)
	at := int64(c.buffer) * s.size
	if err := s.device.CopyFromAsync(at, s.host[c.buffer], 0, bytes, r.stream); err != nil {
		return err
	}
	src, dst := s.device.Ptr()+cuda.DevicePtr(at), r.at(c.to.at)
	k := r.kernels
	var err error
	if r.weight == f32 {
		err = k.run(r.stream, "pack32", cuda.Dim{X: (c.n*c.to.cols + 255) / 256}, 256, 0, src, dst, c.first, c.n,
			c.to.cols, c.to.kb(), c.step, c.base, int(typeOf(c.src.DType)))
	} else {
		err = k.run(r.stream, "pack16", cuda.Dim{X: (c.n*c.to.kb()*4 + 255) / 256}, 256, 0, src, dst, c.first, c.n,
			c.to.cols, c.to.kb(), c.step, c.base)
	}
	if err != nil {
		return err
	}
	return s.fences[c.buffer].Record(r.stream)
}
