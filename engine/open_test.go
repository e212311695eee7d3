package engine

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/enginetest/enginetest/engine/internal/cpu"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOpenRefusesWhatCannotBe(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"no model", Config{}, `engine: Model is "", must be the folder of a Hugging Face checkpoint`},
		{"no such folder", Config{Model: "nowhere"}, "nowhere"},
		{"a device that is not there", Config{Model: tinyLlama, Device: "tpu"}, "engine: Device is tpu, must be"},
		{
			"longer than the checkpoint allows",
			Config{Model: tinyLlama, MaxModelLen: 4096},
			"MaxModelLen is 4096, must be at most 1024",
		},
		{
			"KV cache of no block",
			Config{Model: tinyLlama, KVCacheBytes: 100},
			"a KV block of 16 tokens is 16.0 KiB, and KVCacheBytes gives 100 B",
		},
		{
			"KV cache too small for MaxModelLen",
			Config{Model: tinyLlama, KVCacheBytes: 1 << 16, MaxModelLen: 512},
			"one sequence of MaxModelLen 512 needs 32 KV blocks (512.0 KiB), KVCacheBytes gives 4 (64.0 KiB): lower MaxModelLen to 64",
		},
		{"more than the machine has", Config{Model: tinyLlama, KVCacheBytes: 1 << 50}, "are free"},
		{
			"whole prompts that fit into no step",
			Config{Model: tinyLlama, DisableChunkedPrefill: true, MaxModelLen: 512, MaxNumBatchedTokens: 256},
			"MaxNumBatchedTokens is 256, must be at least MaxModelLen (512) with DisableChunkedPrefill",
		},
		{"negative block size", Config{Model: tinyLlama, BlockSize: -1}, "BlockSize is -1, must be in [1, 4096]"},
		{
			"utilization above 1",
			Config{Model: tinyLlama, MemoryUtilization: 1.5},
			"MemoryUtilization is 1.5, must be in (0, 1]",
		},
		{
			"less than one device",
			Config{Model: tinyLlama, TensorParallel: -1},
			"TensorParallel is -1, must be in [1, 1024], or 0 for the default",
		},
		{
			"more devices than attention heads",
			Config{Model: tinyLlama, Device: "cpu", TensorParallel: 8},
			"TensorParallel is 8, must be a number of devices that can share the model: num_attention_heads is 4 (possible: 1, 2 or 4)",
		},
		{
			"heads that do not divide",
			Config{Model: tinyLlama, Device: "cpu", TensorParallel: 3},
			"num_attention_heads is 4 (possible: 1, 2 or 4)",
		},
		{
			"more devices named than wanted",
			Config{Model: tinyLlama, Device: "cuda:0,1"},
			`Device is cuda:0,1, must be the first of the 1 devices of TensorParallel, or all of them`,
		},
		{
			"a list with a hole",
			Config{Model: tinyLlama, Device: "cuda:0,", TensorParallel: 2},
			`Device is cuda:0,, must be "cpu", "cuda"`,
		},
		{
			"a fault on a rank that is not there",
			Config{Model: tinyLlama, TensorParallel: 2, Faults: []llm.Fault{{Point: llm.FaultLoad, Action: llm.ActError, Rank: 2}}},
			"Faults[0].Rank is 2, must be a rank below 2 (TensorParallel), or -1 for every one",
		},
		{
			"a fault where only the first rank comes",
			Config{
				Model: tinyLlama, TensorParallel: 2,
				Faults: []llm.Fault{{Point: llm.FaultSample, Action: llm.ActError, Rank: 1}},
			},
			`Faults[0].Rank is 1, must be 0 or -1 for point "sample", which the others do not pass`,
		},
		{
			"unknown fault point",
			Config{Model: tinyLlama, Faults: []llm.Fault{{Point: "lunch", Action: llm.ActError}}},
			`Faults[0].Point is "lunch"`,
		},
		{
			"unknown fault action",
			Config{Model: tinyLlama, Faults: []llm.Fault{{Point: llm.FaultLoad, Action: "sing"}}},
			`Faults[0].Action is "sing"`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, err := Open(t.Context(), tc.cfg)
			assert.Nil(t, e)
			assert.ErrorContains(t, err, tc.want)
		})
	}
}

func TestConfigIsResolved(t *testing.T) {
	e := openTiny(t, Config{Device: "cpu"})
	got := e.Config()
	got.Logger = nil
	assert.Equal(t, Config{
		Model: tinyLlama, Device: "cpu", TensorParallel: 1, Task: llm.TaskGenerate, Threads: runtime.GOMAXPROCS(0), BlockSize: 16,
		MaxModelLen: 1024, MaxNumSeqs: 64, MaxNumBatchedTokens: 2048,
		KVCacheBytes: 8 << 20, MaxWaitingSeqs: 32768, MaxWaitingBytes: 256 << 20, StartTimeout: 10 * time.Minute,
	}, got)
	assert.Equal(t, 512, e.Stats().KVBlocks)
	small := openTiny(t, Config{KVCacheBytes: 1 << 19})
	assert.Equal(t, 512, small.Config().MaxModelLen, "the default shrinks to what the KV cache holds")
}

func TestKVPlan(t *testing.T) {
	const gib = 1 << 30
	for _, tc := range []struct {
		name   string
		in     kvInput
		blocks int
		maxLen int
		err    string
	}{
		{"CPU default: 8 sequences", kvInput{
			cfg: Config{BlockSize: 16}, maxPositions: 1000, bytesPerBlock: 1024,
			free: gib, total: gib,
		}, 8 * 63, 1000, ""},
		{
			"CPU default: at most 1 GiB, a shorter MaxModelLen",
			kvInput{
				cfg: Config{BlockSize: 16}, maxPositions: 1 << 17, bytesPerBlock: 1 << 20, free: 4 * gib,
				total: 4 * gib,
			},
			1024, 16384, "",
		},
		{"CPU default: at most half of what is free", kvInput{
			cfg: Config{BlockSize: 16}, maxPositions: 1000,
			bytesPerBlock: 1 << 20, free: 64 << 20, total: gib,
		}, 32, 512, ""},
		{"utilization: the share less what is used", kvInput{
			cfg:          Config{BlockSize: 16, MemoryUtilization: 0.5},
			maxPositions: 1000, bytesPerBlock: 1 << 20, free: 7 * gib, total: 8 * gib,
		}, 3072, 1000, ""},
		{
			"utilization below what is used",
			kvInput{
				cfg:          Config{BlockSize: 16, MemoryUtilization: 0.1},
				maxPositions: 1000, bytesPerBlock: 1 << 20, free: 7 * gib, total: 8 * gib,
			},
			0, 0,
			"MemoryUtilization 0.1 is 819.2 MiB of 8.0 GiB, and 1.0 GiB are in use already",
		},
		{
			"bytes win over utilization",
			kvInput{cfg: Config{
				BlockSize: 16, MemoryUtilization: 0.5,
				KVCacheBytes: 100 << 20,
			}, maxPositions: 1000, bytesPerBlock: 1 << 20, free: 7 * gib, total: 8 * gib},
			100,
			1000, "",
		},
		{"explicit MaxModelLen must fit", kvInput{
			cfg:          Config{BlockSize: 16, MaxModelLen: 1000, KVCacheBytes: 10 << 20},
			maxPositions: 2000, bytesPerBlock: 1 << 20, free: gib, total: gib,
		}, 0, 0, "lower MaxModelLen to 160"},
		{
			"more than is free",
			kvInput{
				cfg: Config{BlockSize: 16, KVCacheBytes: 2 * gib}, maxPositions: 1000,
				bytesPerBlock: 1 << 20, free: gib, total: 4 * gib,
			},
			0, 0,
			"a KV cache of 2.0 GiB (KVCacheBytes), and 1.0 GiB of 4.0 GiB are free",
		},
		{"slots are int32", kvInput{
			cfg: Config{BlockSize: 1 << 12, KVCacheBytes: 1 << 40}, maxPositions: 1000,
			bytesPerBlock: 8, free: 1 << 41, total: 1 << 41,
		}, 524287, 1000, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			plan, err := tc.in.plan()
			if tc.err != "" {
				assert.ErrorContains(t, err, tc.err)
				assert.ErrorIs(t, err, llm.ErrOutOfMemory)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, kvPlan{tc.blocks, tc.maxLen}, plan)
		})
	}
}

func TestErrorsOfInternalPackagesCanBeTested(t *testing.T) {
	_, err := Open(t.Context(), Config{Model: "nowhere"})
	var bad *CheckpointError
	require.ErrorAs(t, err, &bad)
	assert.Equal(t, "nowhere", bad.File)

	err = public(fmt.Errorf("step 3: %w", &cpu.OutOfMemory{
		Owner: "workspace", Bytes: 1 << 20, Free: 1 << 10,
		Total: 1 << 20,
	}))
	assert.ErrorIs(t, err, llm.ErrOutOfMemory)
	assert.EqualError(t, err, "engine: out of device memory: step 3: cpu: out of memory: workspace asked for 1.0 MiB, 1.0 KiB of 1.0 MiB free")
	assert.NoError(t, public(nil))
}
