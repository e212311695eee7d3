package modelrunner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/internal/sample"
	"github.com/enginetest/enginetest/ledger"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// answer is what the runner makes of a prompt, greedily.
func answer(tb testing.TB, r Runner) []int32 {
	tb.Helper()
	d := newDriver(tb, r)
	s := d.add([]int32{206, 5, 7, 9}, sample.Params{TopP: 1, TypicalP: 1, RepetitionPenalty: 1, Logprobs: -1})
	d.run(64, 8)
	return s.Output
}

// copied is a checkpoint that the test may damage.
func copied(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	require.NoError(t, os.CopyFS(to, os.DirFS(from)))
	return to
}

func byDevice(hs []ledger.Holding) map[string]int64 {
	m := map[string]int64{}
	for _, h := range hs {
		m[h.Device] += h.Bytes
	}
	return m
}

func TestSleepAndWake(t *testing.T) {
	for _, dir := range []string{"tiny-llama", "qwen2-sharded-window", "qwen3-tied"} {
		for _, keep := range []bool{true, false} {
			for _, kvFirst := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s keep=%v kvFirst=%v", dir, keep, kvFirst), func(t *testing.T) {
					r := open(t, "testdata/"+dir, Options{}, 8)
					l := r.options.Ledger
					before, want := l.Holdings(), answer(t, r)
					files := int64(0)
					for _, h := range before {
						if h.Kind == "file" {
							files += h.Bytes
						}
					}
					for range 3 {
						require.NoError(t, r.Sleep(keep))
						require.NoError(t, r.Sleep(keep), "again is nothing")
						require.Empty(t, r.Holdings(), "the device has everything back")
						if keep {
							require.Equal(t, map[string]int64{"host": files}, byDevice(l.Holdings()))
						} else {
							require.Empty(t, l.Holdings())
						}
						_, err := r.Execute(&Batch{})
						require.Error(t, err)
						wakeKV := func() { require.NoError(t, r.AllocateKV(8)) }
						if kvFirst {
							wakeKV()
							_, err = r.Execute(&Batch{})
							require.ErrorContains(t, err, "the weights are asleep")
						}
						require.NoError(t, r.WakeWeights())
						require.NoError(t, r.WakeWeights(), "again is nothing")
						if !kvFirst {
							_, err = r.Execute(&Batch{})
							require.ErrorContains(t, err, "no KV cache")
							wakeKV()
						}
						require.Equal(t, ledger.ByOwner(before), ledger.ByOwner(r.Holdings()))
						require.Equal(t, byDevice(before), byDevice(l.Holdings()))
						require.Equal(t, want, answer(t, r))
					}
				})
			}
		}
	}
}

// From kept weights to none is a step down; the other way there is none.
func TestSleepDeeper(t *testing.T) {
	r := open(t, tiny, Options{}, 8)
	require.NoError(t, r.Sleep(true))
	require.NoError(t, r.Sleep(false))
	require.Empty(t, r.options.Ledger.Holdings())
	require.NoError(t, r.Sleep(true))
	require.Empty(t, r.options.Ledger.Holdings())
	require.NoError(t, r.WakeWeights())
}

// A wake that fails, at every allocation and at the load hook, by error and by panic, has taken nothing; the next one works.
func TestWakeFails(t *testing.T) {
	boom := errors.New("boom")
	for _, keep := range []bool{true, false} {
		for _, kvAwake := range []bool{true, false} {
			for _, point := range []string{"load", "weights", "rope", "workspace"} {
				for _, panics := range []bool{false, true} {
					t.Run(fmt.Sprintf("keep=%v kvAwake=%v %s panic=%v", keep, kvAwake, point, panics), func(t *testing.T) {
						armed := false
						strike := func(at string) error {
							if !armed || at != point {
								return nil
							}
							armed = false
							if panics {
								panic(boom)
							}
							return boom
						}
						r := open(t, tiny, Options{Hooks: Hooks{
							Load:     func() error { return strike("load") },
							Allocate: func(owner string, _ int64) error { return strike(owner) },
						}}, 8)
						want := answer(t, r)
						require.NoError(t, r.Sleep(keep))
						if kvAwake {
							require.NoError(t, r.AllocateKV(8))
						}
						asleep := r.options.Ledger.Holdings()
						armed = true
						var err error
						func() {
							defer func() {
								if v := recover(); v != nil {
									err = v.(error)
								}
							}()
							err = r.WakeWeights()
						}()
						require.ErrorIs(t, err, boom)
						require.Equal(t, byDevice(asleep), byDevice(r.options.Ledger.Holdings()))
						require.Equal(t, ledger.ByOwner(asleep), ledger.ByOwner(r.options.Ledger.Holdings()))
						require.NoError(t, r.WakeWeights())
						if !kvAwake {
							require.NoError(t, r.AllocateKV(8))
						}
						require.Equal(t, want, answer(t, r))
					})
				}
			}
		}
	}
}

// What Sleep could not release is tried again before anything is taken, and is never held twice.
func TestSleepReleaseFails(t *testing.T) {
	for _, owner := range []string{"rope", "kv_cache", "weights"} {
		t.Run(owner, func(t *testing.T) {
			stuck := true
			r := open(t, tiny, Options{Hooks: Hooks{Release: func(o string, _ int64) error {
				if stuck && o == owner {
					return errors.New("injected")
				}
				return nil
			}}}, 8)
			want, before := answer(t, r), ledger.ByOwner(r.Holdings())
			require.ErrorContains(t, r.Sleep(false), "modelrunner: releasing "+owner)
			require.Equal(t, []string{owner}, keys(ledger.ByOwner(r.Holdings())))
			require.ErrorContains(t, r.WakeWeights(), "injected")
			require.ErrorContains(t, r.AllocateKV(8), "injected")
			require.Equal(t, []string{owner}, keys(ledger.ByOwner(r.Holdings())))
			stuck = false
			require.NoError(t, r.WakeWeights())
			require.NoError(t, r.AllocateKV(8))
			require.Equal(t, before, ledger.ByOwner(r.Holdings()))
			require.Equal(t, want, answer(t, r))
		})
	}
}

func keys(m map[string]int64) (out []string) {
	for k := range m {
		out = append(out, k)
	}
	return out
}

// Kept weights need no file; others need the same files.
func TestCheckpointChangesMeanwhile(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(t *testing.T, dir string)
		want   string
	}{
		{"vanished", func(t *testing.T, dir string) { require.NoError(t, os.Rename(dir, dir+"-moved")) }, "no such file"},
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
				dir := copied(t, tiny)
				past := time.Now().Add(-time.Hour)
				require.NoError(t, os.Chtimes(filepath.Join(dir, "model.safetensors"), past, past))
				r := open(t, dir, Options{}, 8)
				want := answer(t, r)
				require.NoError(t, r.Sleep(keep))
				tc.change(t, dir)
				err := r.WakeWeights()
				if keep {
					require.NoError(t, err)
					require.NoError(t, r.AllocateKV(8))
					require.Equal(t, want, answer(t, r))
					return
				}
				var wrong *checkpoint.Error
				require.ErrorAs(t, err, &wrong)
				assert.ErrorContains(t, err, tc.want)
				require.Empty(t, r.options.Ledger.Holdings())
			})
		}
	}
}

func TestCopyKV(t *testing.T) {
	r := open(t, tiny, Options{}, 8)
	want := answer(t, r)
	kept := make([][]byte, 8)
	for b := range kept {
		kept[b] = make([]byte, r.KVBytesPerBlock())
		require.NoError(t, r.ReadKV(int32(b), kept[b]))
	}
	// The block that the prompt filled goes elsewhere, and a sequence that finds it there goes on as if it had computed it.
	d := newDriver(t, r)
	s := d.add([]int32{206, 5, 7, 9}, sample.Params{TopP: 1, TypicalP: 1, RepetitionPenalty: 1, Logprobs: -1})
	d.run(64, 1)
	moved := s.blocks[0]
	data := make([]byte, r.KVBytesPerBlock())
	require.NoError(t, r.ReadKV(moved, data))
	to := d.free[len(d.free)-1]
	require.NoError(t, r.WriteKV(to, data))
	require.NoError(t, r.WriteKV(moved, make([]byte, len(data))))
	s.blocks[0] = to
	d.run(64, 8)
	assert.Equal(t, want, s.Output)
	s.blocks[0] = moved // zeros: the comparison notices
	s.Output = s.Output[:1]
	s.computed = 4
	d.run(64, 8)
	assert.NotEqual(t, want, s.Output)

	for _, wrong := range []struct{ block, bytes int }{{-1, len(data)}, {8, len(data)}, {0, len(data) - 1}} {
		assert.ErrorContains(t, r.ReadKV(int32(wrong.block), make([]byte, wrong.bytes)), "the KV cache has 8 blocks of")
		assert.Error(t, r.WriteKV(int32(wrong.block), make([]byte, wrong.bytes)))
	}
	require.NoError(t, r.Sleep(true))
	assert.Error(t, r.ReadKV(0, data), "there is no KV cache")
}
