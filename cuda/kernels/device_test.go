package kernels_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/ledger"
)

// sanitized says that compute-sanitizer watches: buffers then have no guard zones, so that it sees
// their ends, and nothing is run twice.
var sanitized = os.Getenv("ENGINETEST_SANITIZED") != ""

// poison fills what no one has written: NaN in every type, -1 as an index.
const poison = 0xff

// device is a GPU with an image loaded.
type device struct {
	w      *cuda.Worker
	stream *cuda.Stream
	module *cuda.Module
	shared int // bytes of shared memory that a block can have
	sms    int
}

// openDevice loads an image. The test's end closes the device; nothing may be left by then.
func openDevice(t *testing.T, v cuda.Device, load func() (name string, image []byte, err error)) *device {
	t.Helper()
	name, image, err := load()
	require.NoError(t, err)
	w, err := cuda.NewWorker(v, cuda.Config{Ledger: ledger.New(false), Stacks: true})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		require.NoError(t, w.Close(ctx))
	})
	d := &device{w: w, shared: int(v.MaxShared), sms: v.SMs}
	require.NoError(t, w.Do(func() (err error) {
		if d.stream, err = w.NewStream("kernels"); err != nil {
			return err
		}
		start := time.Now()
		d.module, err = w.LoadModule("kernels", name, image)
		t.Logf("%s: %s loaded in %s", v, name, time.Since(start).Round(100*time.Microsecond))
		return err
	}))
	t.Cleanup(func() {
		require.NoError(t, w.Do(func() error { return errors.Join(d.module.Close(), d.stream.Close()) }))
	})
	return d
}

// gpu is the first GPU; without one the test is skipped, and says why.
func gpu(t *testing.T) cuda.Device {
	t.Helper()
	d, err := cuda.Open()
	if err != nil {
		t.Skipf("no GPU: %v", err)
	}
	v, err := d.Device("0")
	if err != nil {
		t.Skipf("no GPU: %v", err)
	}
	if v.Major < 8 {
		t.Skipf("the kernels need compute capability 8.0, the GPU %s has %d.%d", v, v.Major, v.Minor)
	}
	return v
}

// run is one case of a kernel: its buffers, one launch or more, and what was wrong.
type run struct {
	*device
	*rand.Rand
	kernel  string // under test
	buffers []*buffer
	faults  []string
	alter   func(args []any) // a planted error
	largest float64          // of the error's ratios
	started bool             // the kernel under test was launched
}

// buffer is device memory between two guard zones, and what is in it.
type buffer struct {
	name    string
	memory  *cuda.Memory
	guard   int
	before  []byte // as the kernel finds it
	after   []byte
	checked bool // else it must not change
}

// newRun has random numbers of its own, the same each time.
func (d *device) newRun(kernel, name string, alter func([]any)) *run {
	h := fnv.New64a()
	h.Write([]byte(kernel + " " + name))
	return &run{device: d, kernel: kernel, alter: alter, Rand: rand.New(rand.NewPCG(h.Sum64(), 1))}
}

// do runs a case on the device's thread and releases the memory.
func (r *run) do(test func(r *run)) error {
	return r.w.Do(func() (err error) {
		defer func() {
			for _, b := range r.buffers {
				err = errors.Join(err, b.memory.Free())
			}
			if r.w.Err() != nil { // an illegal address: memory that could not be freed is not this test's finding
				err = r.w.Err()
			}
		}()
		defer func() {
			if v := recover(); v != nil {
				stopped, ok := v.(stop)
				if !ok {
					panic(v) // the worker's error has the stack
				}
				err = stopped
			}
		}()
		test(r)
		for _, b := range r.buffers {
			if b.after == nil {
				return fmt.Errorf("%s: the case launched nothing after it made the buffer", b.name)
			}
			if !b.checked && !bytes.Equal(b.before, b.after) {
				r.fault("%s changed, from byte %d of %d on", b.name, firstDifference(b.before, b.after), len(b.before))
			}
		}
		return nil
	})
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}

func (r *run) fault(format string, args ...any) {
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

// ok stops a case that cannot go on; do returns the error.
func ok(err error) {
	if err != nil {
		panic(stop{err})
	}
}

type stop struct{ error }

// in is a buffer with these bytes.
func (r *run) in(name string, data []byte) *buffer {
	b := &buffer{name: name, before: data, guard: 4096}
	if sanitized {
		b.guard = 0
	}
	var err error
	b.memory, err = r.w.Alloc(name, int64(2*b.guard+len(data)))
	ok(err)
	r.buffers = append(r.buffers, b)
	ok(b.memory.Fill(0, b.memory.Size(), poison, r.stream))
	ok(r.stream.Synchronize())
	ok(b.memory.CopyFrom(int64(b.guard), data))
	return b
}

// out is a buffer of this many bytes that no one has written.
func (r *run) out(name string, bytes int) *buffer { return r.in(name, poisoned(bytes)) }

func poisoned(n int) []byte { return bytes.Repeat([]byte{poison}, n) }

// launch runs a kernel to its end. Arguments are int (int in C), int64 and uint64 (u64), float32,
// *buffer (its first byte) and nil, in the order of the kernel's parameters.
func (r *run) launch(kernel string, grid cuda.Dim, threads, shared int, args ...any) {
	r.launchAs(kernel, cuda.Launch{Grid: grid, Block: cuda.Dim{X: threads}, Shared: shared}, args...)
}

// launchAs is launch for kernels that need more said.
func (r *run) launchAs(kernel string, l cuda.Launch, args ...any) {
	f, err := r.module.Function(kernel)
	ok(err)
	if l.Shared > 48<<10 {
		ok(f.SetMaxDynamicShared(l.Shared))
	}
	if kernel == r.kernel {
		r.started = true
		if r.alter != nil {
			r.alter(args)
		}
	}
	a := cuda.NewArgs(len(args))
	for i, v := range args {
		switch v := v.(type) {
		case int:
			a.Int32(i, int32(v))
		case int64:
			a.Int64(i, v)
		case uint64:
			a.Uint64(i, v)
		case float32:
			a.Float32(i, v)
		case *buffer:
			a.Memory(i, v.memory, int64(v.guard))
		case nil:
			a.Ptr(i, 0)
		default:
			ok(fmt.Errorf("%s: argument %d is a %T", kernel, i, v))
		}
	}
	ok(f.Launch(r.stream, l, a))
	ok(r.stream.Synchronize())
	for _, b := range r.buffers {
		all := make([]byte, b.memory.Size())
		ok(b.memory.CopyTo(all, 0))
		end := b.guard + len(b.before)
		b.after = all[b.guard:end]
		for i, c := range all {
			if c != poison && (i < b.guard || i >= end) {
				r.fault("%s wrote byte %d of %s, which has %d", kernel, i-b.guard, b.name, len(b.before))
				break
			}
		}
	}
}

// scratch is memory whose content does not matter.
func (b *buffer) scratch() *buffer {
	b.checked = true
	return b
}

// same wants exactly these bytes.
func (r *run) same(b *buffer, want []byte) {
	b.checked = true
	if len(want) != len(b.after) {
		r.fault("%s has %d bytes, want %d", b.name, len(b.after), len(want))
	} else if i := firstDifference(b.after, want); i < len(want) {
		r.fault("%s: byte %d is %#x, want %#x", b.name, i, b.after[i], want[i])
	}
}

// near wants float32 values: each row of width elements within tolerance of the reference, as
// ‖out-ref‖ / ‖ref‖, and poison where the reference is NaN.
func (r *run) near(b *buffer, want []float64, width int, tolerance float64) {
	r.compare(b, f32, want, width, tolerance, func(i int) int { return 4 * i })
}

// compare reads element i at offset(i).
func (r *run) compare(b *buffer, d dtype, want []float64, width int, tolerance float64, offset func(i int) int) {
	b.checked = true
	got := make([]float64, len(want))
	for i, w := range want {
		raw := b.after[offset(i):][:d.size()]
		got[i] = d.get(raw)
		if w != w && !bytes.Equal(raw, poisoned(d.size())) {
			r.fault("%s: element %d of row %d was written: %g", b.name, i%width, i/width, got[i])
			return
		}
	}
	r.judge(b.name, got, want, width, tolerance)
}

func (r *run) judge(name string, got, want []float64, width int, tolerance float64) {
	ratio, row := worst(got, want, width)
	if ratio > 0 {
		r.largest = max(r.largest, ratio/tolerance)
	}
	if !(ratio <= tolerance) {
		n := min(8, width)
		r.fault("%s: row %d: ‖out-ref‖/‖ref‖ is %.3g, want at most %.3g; it begins %.5g, want %.5g", name, row, ratio,
			tolerance, got[row*width:][:n], want[row*width:][:n])
	}
}
