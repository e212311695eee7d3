package kernels_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/cuda/kernels"
	"github.com/enginetest/enginetest/internal/cudatest"
)

// Every kernel of the images is tested by itself, against float64, on a GPU.
//
// A new kernel needs a row in tests (TestEveryKernelHasATest fails without): its name, a function
// that runs its cases, and at least one planted error. A case makes buffers (in, out, operand,
// activation, vector, floats32, ints), launches, and compares (near, nearActivation, same) with
// what it computes in float64 from the very values that the kernel reads. Buffers lie between guard
// zones and start out as poison (NaN, -1): a NaN in a reference means that the kernel must not
// write there, and a buffer that is never compared must not change. Random numbers are the case's
// own, the same each time. See testEmbed for a short one.
//
// wrong are planted errors: each alters the arguments of the first case, which must notice. Keep
// indices in range: the kernel runs.
type kernelTest struct {
	kernels []string
	test    func(k *kernel)
	wrong   []wrong
}

type wrong struct {
	what  string
	alter func(args []any)
}

// set plants a value, swap exchanges two arguments.
func set(what string, i int, v any) wrong {
	return wrong{what, func(args []any) { args[i] = v }}
}

func swap(what string, i, j int) wrong {
	return wrong{what, func(args []any) { args[i], args[j] = args[j], args[i] }}
}

var tests = slices.Concat(rowTests, variantTests, productTests, attentionTests, sampleTests, siftTests, reduceTests)

// kernel is one kernel under test.
type kernel struct {
	t     *testing.T
	dev   *device
	name  string
	alter func([]any) // a planted error: the first case only
	idle  bool        // on the stub: kernels do nothing, which every case has to notice
	cases int
	found string // what noticed the planted error
}

// run runs a case.
func (k *kernel) run(name string, test func(r *run)) {
	k.t.Helper()
	if k.cases++; k.alter != nil && k.cases > 1 {
		return
	}
	r := k.dev.newRun(k.name, name, k.alter)
	err := r.do(test)
	if !r.started && err == nil {
		err = errors.New("the kernel was not launched")
	}
	if err != nil {
		k.t.Errorf("%s: %s: %v", k.name, name, err)
		return
	}
	switch {
	case k.alter != nil:
		k.found = strings.Join(r.faults, "; ")
	case k.idle:
		assert.NotEmpty(k.t, r.faults, "%s: %s: a kernel that does nothing passes", k.name, name)
	default:
		for _, f := range r.faults {
			k.t.Errorf("%s: %s: %s", k.name, name, f)
		}
		k.t.Logf("%s: %s: the error is %.2f of what is tolerated", k.name, name, r.largest)
	}
}

// TestKernels runs every kernel of the image that this GPU gets, and of the PTX, which the driver
// compiles (not with -short, nor for a sanitizer).
func TestKernels(t *testing.T) {
	t.Run("native", func(t *testing.T) {
		testImage(t, func(v cuda.Device) (string, []byte, error) { return kernels.Image(v.Major, v.Minor) })
	})
	t.Run("variants", func(t *testing.T) {
		testImage(t, func(cuda.Device) (string, []byte, error) { return kernels.Variants() })
	})
	t.Run("PTX", func(t *testing.T) {
		if testing.Short() || sanitized {
			t.Skip("the PTX image is not run with -short, nor under a sanitizer")
		}
		testImage(t, func(cuda.Device) (string, []byte, error) { return kernels.PTX() })
	})
}

// TestIdleKernels runs the cases on the stand-in for libcuda, whose kernels do nothing: of each row
// for the first and the last kernel.
func TestIdleKernels(t *testing.T) {
	stub := cudatest.New(t, 1, 1<<30)
	d, err := cuda.Open(cuda.Library(stub.Path))
	require.NoError(t, err)
	v, err := d.Device("0")
	require.NoError(t, err)
	for _, image := range []func() (string, []byte, error){
		func() (string, []byte, error) { return kernels.Image(9, 0) }, kernels.Variants,
	} {
		testIdle(t, v, image)
	}
}

func testIdle(t *testing.T, v cuda.Device, image func() (string, []byte, error)) {
	t.Helper()
	_, data, err := image()
	require.NoError(t, err)
	have := entries(t, data)
	dev := openDevice(t, v, image)
	for _, row := range tests {
		if !slices.Contains(have, row.kernels[0]) {
			continue
		}
		for _, name := range slices.Compact([]string{row.kernels[0], row.kernels[len(row.kernels)-1]}) {
			k := &kernel{t: t, dev: dev, name: name, idle: true}
			row.test(k)
			assert.Positive(t, k.cases, name)
		}
	}
}

func testImage(t *testing.T, load func(cuda.Device) (string, []byte, error)) {
	var have []string
	v := gpu(t)
	dev := openDevice(t, v, func() (string, []byte, error) {
		name, image, err := load(v)
		if err == nil {
			have = entries(t, image)
		}
		return name, image, err
	})
	for _, row := range tests {
		for _, name := range row.kernels {
			if !slices.Contains(have, name) {
				continue
			}
			t.Run(name, func(t *testing.T) {
				k := &kernel{t: t, dev: dev, name: name}
				row.test(k)
				assert.Positive(t, k.cases)
				if dev.w.Err() != nil {
					t.Fatalf("the device is lost: %v", dev.w.Err())
				}
				for _, w := range row.wrong {
					if sanitized {
						break
					}
					planted := &kernel{t: t, dev: dev, name: name, alter: w.alter}
					row.test(planted)
					if assert.NotEmpty(t, planted.found, "planted: %s", w.what) {
						t.Logf("planted: %s: %.200s", w.what, planted.found)
					}
				}
			})
		}
	}
}

// TestGuards plants what the harness itself has to notice: a write behind a buffer, one to an
// input, one where nothing belongs.
func TestGuards(t *testing.T) {
	if sanitized {
		t.Skip("there are no guard zones under a sanitizer: it finds the write behind the buffer itself")
	}
	v := gpu(t)
	dev := openDevice(t, v, func() (string, []byte, error) { return kernels.Image(v.Major, v.Minor) })
	for _, c := range []struct {
		why, want string
		test      func(r *run)
	}{
		{"a row too many", `^embed_f32 wrote byte 256 of x, which has 256$`, func(r *run) {
			table, tokens, x := r.operand("table", f32, plain, 4, 32, 1), r.ints("tokens", 1, 2, 3), r.out("x", 2*32*4)
			r.launch("embed_f32", cuda.Dim{X: 3}, 32, 0, table.buffer, tokens, x, 1)
			r.near(x, append(slices.Clone(table.row(1)), table.row(2)...), 32, 0)
		}},
		{"an output that nobody expected", `^tokens changed, from byte 0 of 4 on$`, func(r *run) {
			best, draws := r.in("best", make([]byte, 16)), r.in("draws", make([]byte, 16))
			r.launch("winner", cuda.Dim{X: 1}, 256, 0, best, draws, 1, r.in("tokens", words(7)))
		}},
		{"written where nothing belongs", `^x: element 0 of row 1 was written: -?[0-9.e-]+$`, func(r *run) {
			table, tokens, x := r.operand("table", f32, plain, 4, 32, 1), r.ints("tokens", 1, 2), r.out("x", 2*32*4)
			r.launch("embed_f32", cuda.Dim{X: 2}, 32, 0, table.buffer, tokens, x, 1)
			r.near(x, append(slices.Clone(table.row(1)), untouched(32)...), 32, 0)
		}},
		{
			"one element of many is wrong", `^x: row 1: ‖out-ref‖/‖ref‖ is .*, want at most 4.77e-07; it begins .*$`,
			func(r *run) {
				table, tokens, x := r.operand("table", f32, plain, 4, 512, 1), r.ints("tokens", 1, 2), r.out("x", 2*512*4)
				r.launch("embed_f32", cuda.Dim{X: 2}, 32, 0, table.buffer, tokens, x, 16)
				want := append(slices.Clone(table.row(1)), table.row(2)...)
				want[512+100] *= 1.001
				r.near(x, want, 512, few)
			},
		},
	} {
		r := dev.newRun("", c.why, nil)
		require.NoError(t, r.do(c.test), c.why)
		require.Len(t, r.faults, 1, c.why)
		require.Regexp(t, c.want, r.faults[0], c.why)
		t.Logf("%s: %s", c.why, r.faults[0])
	}
}

// TestEveryKernelHasATest compares the table with the functions of the images; no GPU is needed.
func TestEveryKernelHasATest(t *testing.T) {
	tested := map[string]bool{}
	for _, row := range tests {
		require.NotEmpty(t, row.wrong, "%s: no planted error", row.kernels[0])
		for _, name := range row.kernels {
			require.False(t, tested[name], "%s has two rows", name)
			tested[name] = true
		}
	}
	all := map[string]bool{}
	for name, image := range images(t) {
		list := entries(t, image)
		require.NotEmpty(t, list, name)
		for _, e := range list {
			all[e] = true
			assert.True(t, tested[e], "%s has the kernel %s, and no row of tests in every_test.go has it: add one",
				name, e)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(tested)) {
		assert.True(t, all[name], "no image has the kernel %s: remove its row", name)
	}
}

func images(t *testing.T) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	add := func(name string, image []byte, err error) {
		require.NoError(t, err)
		all[name] = image
	}
	add(kernels.PTX())
	add(kernels.Variants())
	add(kernels.Image(8, 0))
	add(kernels.Image(9, 0))
	return all
}

// entries lists the kernels of an image: the symbols of a cubin that are functions and marked as
// entry points (STO_CUDA_ENTRY), the .entry directives of PTX.
func entries(t *testing.T, image []byte) []string {
	t.Helper()
	var list []string
	if !bytes.HasPrefix(image, []byte(elf.ELFMAG)) {
		for _, m := range regexp.MustCompile(`\.entry (\w+)\(`).FindAllSubmatch(image, -1) {
			list = append(list, string(m[1]))
		}
		return list
	}
	image = slices.Clone(image)
	// e_version, where NVIDIA has a version of its own
	binary.LittleEndian.PutUint32(image[20:], uint32(elf.EV_CURRENT))
	f, err := elf.NewFile(bytes.NewReader(image))
	require.NoError(t, err)
	symbols, err := f.Symbols()
	require.NoError(t, err)
	const entry = 0x10
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC && s.Other&entry != 0 {
			list = append(list, s.Name)
		}
	}
	return list
}
