package cudarunner

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/cuda/kernels"
	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/fixtures"
)

// TestArguments: every kernel that a life of runners of each type launches gets as many arguments,
// of the same sizes, as its PTX declares.
func TestArguments(t *testing.T) {
	declared := declaredArguments(t)
	_, v := stubDevice(t)
	launched := map[string]string{}
	for _, s := range []fixtures.Spec{
		{DType: fixtures.F32},
		{DType: fixtures.F16},
		{Hidden: 128, Heads: 4, KVHeads: 2, HeadDim: 64},
		{Architecture: fixtures.Gemma3, SlidingWindow: 8},
	} {
		r, err := openDir(t, v, fixtures.Checkpoint(t, s), Options{Fast: true})
		require.NoError(t, err)
		require.NoError(t, r.AllocateKV(100))
		r.kernels.launched = map[string]string{}
		d := newDriver(t, 16, 100, 2048)
		for range 3 {
			d.add(prompts(256, 100)[0], 4, sample.Params{Logprobs: -1})
		}
		d.generate(r, 50)
		one := newDriver(t, 16, 100, 2048)
		one.add(prompts(256, 10)[0], 4, sample.Params{Logprobs: -1})
		one.generate(r, 50)
		sifted := newDriver(t, 16, 100, 2048)
		sifted.add(prompts(256, 10)[0], 2, sample.Params{Logprobs: 3})
		sifted.generate(r, 50)
		if r.weight != f32 { // products of the machine code for Hopper: the stand-in does not have them
			r.kernels.hopper = true
			m := r.layers[0].gateUp
			for _, tokens := range []int{100, 1 << 20} {
				err := r.worker.Do(func() error {
					_, err := r.product(m, r.work.h, round, tokens, 0, 0, silu, output{})
					return err
				})
				require.ErrorContains(t, err, "wgmma")
				if r.tiled() {
					err := r.worker.Do(func() error { return r.qkv(&step{tokens: tokens}, 0) })
					require.ErrorContains(t, err, "_qkv")
				}
			}
		}
		maps.Copy(launched, r.kernels.launched)
		require.NoError(t, r.Close())
	}
	kinds := map[string]bool{}
	for name, sizes := range launched {
		kind, _, _ := strings.Cut(name, "_")
		kinds[strings.TrimRight(kind, "0123456789")] = true
		require.Equal(t, declared[name], sizes, name)
	}
	for _, kind := range []string{
		"attend", "prefill", "rope", "gemv", "skinny", "gemm", "wgmma", "norm", "embed",
		"scale", "gelu", "race", "winner", "sift",
	} {
		require.True(t, kinds[kind], "%s was launched: %v", kind, kinds)
	}
}

// parameters reads the sizes of parameters in bits, by kernel, from machine code: its sections
// .nv.info.* are lists of attributes (format, attribute, size, value), and attribute 0x17 is a
// parameter's ordinal at byte 4 and its size in the upper 14 bits of the word at byte 8.
func parameters(t *testing.T, cubin []byte) map[string]string {
	cubin = slices.Clone(cubin)
	// e_version, where NVIDIA has a version of its own
	binary.LittleEndian.PutUint32(cubin[20:], uint32(elf.EV_CURRENT))
	f, err := elf.NewFile(bytes.NewReader(cubin))
	require.NoError(t, err)
	out := map[string]string{}
	for _, section := range f.Sections {
		name, found := strings.CutPrefix(section.Name, ".nv.info.")
		if !found {
			continue
		}
		data, err := section.Data()
		require.NoError(t, err)
		sizes := map[int]string{}
		for len(data) >= 4 {
			format, attribute, n := data[0], data[1], 0
			if format == 4 { // a value of its own size; others lie in the two bytes here
				n = int(binary.LittleEndian.Uint16(data[2:]))
			}
			if v := data[4 : 4+n]; attribute == 0x17 {
				sizes[int(binary.LittleEndian.Uint16(v[4:]))] = fmt.Sprint(binary.LittleEndian.Uint32(v[8:])>>18*8, " ")
			}
			data = data[4+n:]
		}
		for i := range len(sizes) {
			out[name] += sizes[i]
		}
	}
	return out
}

// declaredArguments are the sizes of every kernel's arguments in bits, in its PTX.
func declaredArguments(t *testing.T) map[string]string {
	t.Helper()
	_, ptx, err := kernels.PTX()
	require.NoError(t, err)
	_, variants, err := kernels.Variants()
	require.NoError(t, err)
	ptx = append(ptx, variants...)
	declared := map[string]string{}
	for _, m := range regexp.MustCompile(`(?s)\.entry (\w+)\((.*?)\)`).FindAllStringSubmatch(string(ptx), -1) {
		for _, p := range regexp.MustCompile(`\.param [^,]*?\.([usfb]\d+)`).FindAllStringSubmatch(m[2], -1) {
			declared[m[1]] += p[1][1:] + " "
		}
	}
	_, image, err := kernels.Image(9, 0)
	require.NoError(t, err)
	for name, sizes := range parameters(t, image) {
		if ptx := declared[name]; ptx == "" {
			declared[name] = sizes
		} else {
			require.Equal(t, ptx, sizes, name)
		}
	}
	return declared
}
