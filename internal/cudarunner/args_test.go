package cudarunner

import (
	"maps"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/cuda/kernels"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/internal/sample"
)

// TestArguments: every kernel that a life of runners of each type launches gets as many arguments, of the same sizes, as its PTX declares.
func TestArguments(t *testing.T) {
	_, ptx, err := kernels.PTX()
	require.NoError(t, err)
	declared := map[string]string{}
	for _, m := range regexp.MustCompile(`(?s)\.entry (\w+)\((.*?)\)`).FindAllStringSubmatch(string(ptx), -1) {
		for _, p := range regexp.MustCompile(`\.param [^,]*?\.([usfb]\d+)`).FindAllStringSubmatch(m[2], -1) {
			declared[m[1]] += p[1][1:] + " "
		}
	}
	_, v := stubDevice(t)
	launched := map[string]string{}
	for _, s := range []fixtures.Spec{{DType: fixtures.F32}, {DType: fixtures.F16}, {Hidden: 128, Heads: 4, KVHeads: 2, HeadDim: 64}} {
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
		maps.Copy(launched, r.kernels.launched)
		require.NoError(t, r.Close())
	}
	kinds := map[string]bool{}
	for name, sizes := range launched {
		kind, _, _ := strings.Cut(name, "_")
		kinds[strings.TrimRight(kind, "0123456789")] = true
		require.Equal(t, declared[name], sizes, name)
	}
	for _, kind := range []string{"attend", "prefill", "rope", "gemv", "skinny", "gemm", "norm", "embed", "race", "winner"} {
		require.True(t, kinds[kind], "%s was launched: %v", kind, kinds)
	}
}
