// Package runnertest has what every model runner must do that sleeps and copies KV blocks, whatever
// its device: tables of tests that each of them runs.
package runnertest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/ledger"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Runner is one that sleeps.
type Runner interface {
	modelrunner.Runner
	modelrunner.Sleeper
	modelrunner.KVCopier
}

// Blocks is the size of the KV caches here; a block has 16 tokens.
const Blocks = 8

// Device is a kind of runner.
type Device struct {
	Package string   // in its errors
	Dir     string   // of testdata/tiny-llama and the other checkpoints
	Owners  []string // of what a wake allocates; the weights are the first

	// Open returns a runner without a KV cache, with MaxNumBatchedTokens 64, and what it enters its
	// memory in; the test's end closes it.
	Open func(t *testing.T, dir string, hooks modelrunner.Hooks) (Runner, *ledger.Ledger)
	// Kept is what a sleep that keeps the weights has on the host, of what the runner held.
	Kept func(held []ledger.Holding) int64
	// Blank says that the device computes nothing: a stand-in. Answers then show nothing.
	Blank bool
}

func (d Device) tiny() string { return filepath.Join(d.Dir, "tiny-llama") }

func (d Device) open(t *testing.T, dir string, hooks modelrunner.Hooks) (Runner, *ledger.Ledger) {
	t.Helper()
	r, l := d.Open(t, dir, hooks)
	require.NoError(t, r.AllocateKV(Blocks))
	return r, l
}

// sequence is one that is generated greedily.
type sequence struct {
	sample.State
	blocks   []int32
	computed int
}

func newSequence(blocks ...int32) *sequence {
	return &sequence{
		State: sample.State{
			Prompt: []int32{206, 5, 7, 9},
			Params: sample.Params{TopP: 1, TypicalP: 1, RepetitionPenalty: 1, Logprobs: -1},
		},
		blocks: blocks,
	}
}

// run steps until there are n tokens out.
func (s *sequence) run(t *testing.T, r modelrunner.Runner, n int) {
	t.Helper()
	for len(s.Output) < n {
		all := append(slices.Clone(s.Prompt), s.Output...)
		b := &modelrunner.Batch{Tokens: all[s.computed:]}
		for i := s.computed; i < len(all); i++ {
			b.Positions = append(b.Positions, int32(i))
			b.Slots = append(b.Slots, 16*s.blocks[i/16]+int32(i%16))
		}
		b.Seqs = []modelrunner.Seq{{
			Len: len(b.Tokens), Context: len(all), Blocks: s.blocks, Sampler: &s.State,
			PromptLogprobs: -1,
		}}
		res, err := r.Execute(b)
		require.NoError(t, err)
		require.NoError(t, res[0].Err)
		s.computed, s.Output = len(all), append(s.Output, res[0].Token)
	}
}

// answer is what the runner makes of a prompt: steps, graphs and all.
func answer(t *testing.T, r modelrunner.Runner) []int32 {
	t.Helper()
	s := newSequence(5)
	s.run(t, r, 8)
	return s.Output
}

// bytes sums up, without what has none: a context, a stream.
func bytes(hs []ledger.Holding, key func(ledger.Holding) string) map[string]int64 {
	m := map[string]int64{}
	for _, h := range hs {
		if h.Bytes != 0 {
			m[key(h)] += h.Bytes
		}
	}
	return m
}

func byDevice(hs []ledger.Holding) map[string]int64 {
	return bytes(hs, func(h ledger.Holding) string { return h.Device })
}

func byOwner(hs []ledger.Holding) map[string]int64 {
	return bytes(hs, func(h ledger.Holding) string { return h.Owner })
}

// Sleep runs the tests of modelrunner.Sleeper.
func Sleep(t *testing.T, d Device) {
	t.Run("sleep and wake", d.sleepAndWake)
	t.Run("deeper", d.deeper)
	t.Run("a wake that fails", d.wakeFails)
	t.Run("a release that fails", d.releaseFails)
	t.Run("the checkpoint changes meanwhile", d.checkpointChanges)
}

func (d Device) sleepAndWake(t *testing.T) {
	for _, dir := range []string{"tiny-llama", "qwen2-sharded-window", "qwen3-tied"} {
		for _, keep := range []bool{true, false} {
			for _, kvFirst := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s keep=%v kvFirst=%v", dir, keep, kvFirst), func(t *testing.T) {
					r, l := d.open(t, filepath.Join(d.Dir, dir), modelrunner.Hooks{})
					want := answer(t, r)
					before := l.Holdings()
					for range 3 {
						require.NoError(t, r.Sleep(keep))
						require.NoError(t, r.Sleep(keep), "again is nothing")
						require.Empty(t, byDevice(r.Holdings()), "the device has everything back")
						if keep {
							require.Equal(t, map[string]int64{"host": d.Kept(before)}, byDevice(l.Holdings()))
						} else {
							require.Empty(t, byDevice(l.Holdings()))
						}
						_, err := r.Execute(&modelrunner.Batch{})
						require.Error(t, err)
						wakeKV := func() { require.NoError(t, r.AllocateKV(Blocks)) }
						if kvFirst {
							wakeKV()
							_, err = r.Execute(&modelrunner.Batch{})
							require.ErrorContains(t, err, "the weights are asleep")
						}
						require.NoError(t, r.WakeWeights())
						require.NoError(t, r.WakeWeights(), "again is nothing")
						if !kvFirst {
							_, err = r.Execute(&modelrunner.Batch{})
							require.ErrorContains(t, err, "no KV cache")
							wakeKV()
						}
						require.Equal(t, byOwner(before), byOwner(l.Holdings()))
						require.Equal(t, byDevice(before), byDevice(l.Holdings()))
						require.Equal(t, want, answer(t, r))
					}
				})
			}
		}
	}
}

// From kept weights to none is a step down; the other way there is none.
func (d Device) deeper(t *testing.T) {
	r, l := d.open(t, d.tiny(), modelrunner.Hooks{})
	want := answer(t, r)
	require.NoError(t, r.Sleep(true))
	require.NoError(t, r.Sleep(false))
	require.Empty(t, byDevice(l.Holdings()))
	require.NoError(t, r.Sleep(true))
	require.Empty(t, byDevice(l.Holdings()))
	require.NoError(t, r.WakeWeights())
	require.NoError(t, r.AllocateKV(Blocks))
	require.Equal(t, want, answer(t, r))
}

// A wake that fails, at every allocation and at the load hook, by error and by panic, has taken
// nothing; the next one works.
func (d Device) wakeFails(t *testing.T) {
	boom := errors.New("boom")
	for _, keep := range []bool{true, false} {
		for _, kvAwake := range []bool{true, false} {
			t.Run(fmt.Sprintf("keep=%v kvAwake=%v", keep, kvAwake), func(t *testing.T) {
				point, panics := "", false // "": no fault
				strike := func(at string) error {
					if at != point {
						return nil
					}
					if point = ""; panics {
						panic(boom)
					}
					return boom
				}
				r, l := d.open(t, d.tiny(), modelrunner.Hooks{
					Load:     func() error { return strike("load") },
					Allocate: func(owner string, _ int64) error { return strike(owner) },
				})
				want := answer(t, r)
				for _, at := range append([]string{"load"}, d.Owners...) {
					for _, panics = range []bool{false, true} {
						require.NoError(t, r.Sleep(keep))
						if kvAwake {
							require.NoError(t, r.AllocateKV(Blocks))
						}
						asleep := l.Holdings()
						point = at
						require.ErrorIs(t, caught(r.WakeWeights), boom, at)
						require.Empty(t, point, "the fault has struck")
						require.Equal(t, byDevice(asleep), byDevice(l.Holdings()), at)
						require.Equal(t, byOwner(asleep), byOwner(l.Holdings()), at)
						require.NoError(t, r.WakeWeights())
						if !kvAwake {
							require.NoError(t, r.AllocateKV(Blocks))
						}
						require.Equal(t, want, answer(t, r), at)
					}
				}
			})
		}
	}
}

// caught makes an error of a panic.
func caught(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = v.(error)
		}
	}()
	return f()
}

// What Sleep could not release is tried again before anything is taken, and is never held twice.
func (d Device) releaseFails(t *testing.T) {
	for _, owner := range append([]string{"kv_cache"}, d.Owners...) {
		t.Run(owner, func(t *testing.T) {
			stuck := true
			r, l := d.open(t, d.tiny(), modelrunner.Hooks{Release: func(o string, _ int64) error {
				if stuck && o == owner {
					return errors.New("injected")
				}
				return nil
			}})
			want, before := answer(t, r), byOwner(l.Holdings())
			require.ErrorContains(t, r.Sleep(false), d.Package+": releasing "+owner)
			only := map[string]int64{owner: before[owner]}
			require.Equal(t, only, byOwner(l.Holdings()))
			require.ErrorContains(t, r.WakeWeights(), "injected")
			require.ErrorContains(t, r.AllocateKV(Blocks), "injected")
			require.Equal(t, only, byOwner(l.Holdings()))
			stuck = false
			require.NoError(t, r.WakeWeights())
			require.NoError(t, r.AllocateKV(Blocks))
			require.Equal(t, before, byOwner(l.Holdings()))
			require.Equal(t, want, answer(t, r))
		})
	}
}

// Kept weights need no file; others need the same files.
func (d Device) checkpointChanges(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(t *testing.T, dir string)
		want   string
	}{
		{"vanished", func(t *testing.T, dir string) {
			require.NoError(t, os.Rename(dir, dir+"-moved"))
		}, "no such file"},
		{"weights vanished", func(t *testing.T, dir string) {
			require.NoError(t, os.Rename(filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "x")))
		}, "no safetensors weights"},
		{"weights written again", func(t *testing.T, dir string) {
			later := time.Now().Add(time.Hour)
			require.NoError(t, os.Chtimes(filepath.Join(dir, "model.safetensors"), later, later))
		}, "changed since it was first loaded: got "},
		{"weights replaced by a copy", func(t *testing.T, dir string) {
			file := filepath.Join(dir, "model.safetensors")
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(file+".new", data, 0o600))
			require.NoError(t, os.Rename(file+".new", file))
		}, "model.safetensors: changed since it was first loaded"},
		{"another configuration", func(t *testing.T, dir string) {
			file := filepath.Join(dir, "config.json")
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			other := regexp.MustCompile(`"rms_norm_eps": [^,]*`).ReplaceAll(data, []byte(`"rms_norm_eps": 0.5`))
			require.NotEqual(t, data, other)
			require.NoError(t, os.WriteFile(file, other, 0o600))
		}, "config.json: changed since it was first loaded"},
	} {
		for _, keep := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s keep=%v", tc.name, keep), func(t *testing.T) {
				dir := t.TempDir()
				require.NoError(t, os.CopyFS(dir, os.DirFS(d.tiny())))
				past := time.Now().Add(-time.Hour)
				require.NoError(t, os.Chtimes(filepath.Join(dir, "model.safetensors"), past, past))
				r, l := d.open(t, dir, modelrunner.Hooks{})
				want := answer(t, r)
				require.NoError(t, r.Sleep(keep))
				tc.change(t, dir)
				err := r.WakeWeights()
				if keep {
					require.NoError(t, err)
					require.NoError(t, r.AllocateKV(Blocks))
					require.Equal(t, want, answer(t, r))
					return
				}
				var wrong *checkpoint.Error
				require.ErrorAs(t, err, &wrong)
				assert.ErrorContains(t, err, tc.want)
				require.Empty(t, byDevice(l.Holdings()))
			})
		}
	}
}

// CopyKV tests modelrunner.KVCopier: the block that a prompt filled goes elsewhere, and a sequence
// that finds it there goes on as if it had computed it.
func CopyKV(t *testing.T, d Device) {
	r, _ := d.open(t, d.tiny(), modelrunner.Hooks{})
	want := answer(t, r)
	s := newSequence(5)
	s.run(t, r, 1)
	data, other := make([]byte, r.KVBytesPerBlock()), make([]byte, r.KVBytesPerBlock())
	require.NoError(t, r.ReadKV(5, data))
	require.NoError(t, r.WriteKV(3, data))
	require.NoError(t, r.ReadKV(3, other))
	require.Equal(t, data, other)
	require.NoError(t, r.WriteKV(5, make([]byte, len(data))))
	require.NoError(t, r.ReadKV(5, other))
	require.Equal(t, make([]byte, len(data)), other)
	s.blocks[0] = 3
	s.run(t, r, 8)
	assert.Equal(t, want, s.Output)
	if !d.Blank {
		s.blocks[0], s.Output, s.computed = 5, s.Output[:1], 4 // zeros: the comparison notices
		s.run(t, r, 8)
		assert.NotEqual(t, want, s.Output)
	}
	for _, wrong := range []struct{ block, bytes int }{{-1, len(data)}, {Blocks, len(data)}, {0, len(data) - 1}} {
		assert.ErrorContains(t, r.ReadKV(int32(wrong.block), make([]byte, wrong.bytes)), "the KV cache has 8 blocks of")
		assert.Error(t, r.WriteKV(int32(wrong.block), make([]byte, wrong.bytes)))
	}
	for _, keep := range []bool{true, false} {
		require.NoError(t, r.Sleep(keep))
		assert.ErrorContains(t, r.ReadKV(0, data), "the KV cache has 0 blocks", "it is asleep")
		assert.ErrorContains(t, r.WriteKV(0, data), "the KV cache has 0 blocks")
		require.NoError(t, r.AllocateKV(Blocks))
		require.NoError(t, r.WriteKV(7, data), "the weights need not be awake")
		require.NoError(t, r.ReadKV(7, other))
		require.Equal(t, data, other)
	}
}
