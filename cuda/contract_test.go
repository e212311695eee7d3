package cuda

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What holds on the stub and on a GPU.

func TestDevices(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		vs, err := r.d.Devices()
		require.NoError(t, err)
		require.NotEmpty(t, vs)
		major, minor := r.d.Version()
		t.Logf("%s, CUDA %d.%d", r.d.Path(), major, minor)
		for i, v := range vs {
			t.Log(v, v.PCI)
			assert.Equal(t, i, v.Ordinal)
			assert.Regexp(t, `^GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`, v.UUID)
			assert.Positive(t, v.TotalMemory)
			assert.Positive(t, v.SMs)
			for _, id := range []string{fmt.Sprint(i), v.UUID, v.UUID[:12]} {
				got, err := r.d.Device(id)
				require.NoError(t, err)
				assert.Equal(t, v, got)
			}
		}
		for id, reason := range map[string]string{
			"99": "ordinal past the end", "-1": "negative",
			"GPU-ffffffffff": "no such UUID", "": "empty",
		} {
			_, err := r.d.Device(id)
			require.ErrorIs(t, err, codeInvalidDevice, reason)
		}
	})
}

func TestMemoryHoldsData(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		w := r.worker(t, 0)
		do(t, w, func() {
			const n = 3<<20 + 13 // odd
			s, err := w.NewStream("test")
			require.NoError(t, err)
			in, out := pattern(n), make([]byte, n)
			from, err := w.AllocPinned("test", n)
			require.NoError(t, err)
			to, err := w.AllocPinned("test", n)
			require.NoError(t, err)
			m, err := w.Alloc("test", n)
			require.NoError(t, err)
			require.EqualValues(t, n, m.Size())
			require.NoError(t, s.Synchronize())

			require.NoError(t, m.CopyFrom(0, in))
			clear(out)
			require.NoError(t, m.CopyTo(out, 0))
			require.Equal(t, in, out)

			require.NoError(t, m.CopyTo(out[:5], 100), "a part")
			require.Equal(t, in[100:105], out[:5])

			copy(from.Bytes(), in)
			require.NoError(t, m.Fill(0, n, 0, s))
			require.NoError(t, m.CopyFromAsync(7, from, 3, n-10, s))
			require.NoError(t, m.CopyToAsync(to, 0, 0, n, s))
			require.NoError(t, s.Synchronize())
			require.Equal(t, in[3:n-7], to.Bytes()[7:n-3])
			require.Equal(t, make([]byte, 7), to.Bytes()[:7])
			require.NoError(t, m.Free())
			for _, f := range []func() error{from.Free, to.Free, s.Close} {
				require.NoError(t, f())
			}
			assert.Nil(t, from.Bytes())
		})
	})
}

func TestFillsAndDeviceCopies(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		w := r.worker(t, 0)
		do(t, w, func() {
			a, err := w.Alloc("a", 4096)
			require.NoError(t, err)
			b, err := w.Alloc("b", 4096)
			require.NoError(t, err)
			require.NoError(t, a.Fill(0, 4096, 0xAB, nil))
			require.NoError(t, a.Fill(1024, 1024, 0xCD, nil))
			require.NoError(t, b.CopyDevice(0, a, 512, 2048, nil))
			require.NoError(t, w.Synchronize())
			got := make([]byte, 2048)
			require.NoError(t, b.CopyTo(got, 0))
			require.Equal(t, byte(0xAB), got[511])
			require.Equal(t, bytes.Repeat([]byte{0xCD}, 1024), got[512:1536])
			require.Equal(t, byte(0xAB), got[1536])
			require.NoError(t, a.Free())
			require.NoError(t, b.Free())
		})
	})
}

func TestRegisteredMemory(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		w := r.worker(t, 0)
		host := pattern(1 << 20)
		do(t, w, func() {
			p, err := w.Register("staging", host)
			require.NoError(t, err)
			m, err := w.Alloc("m", 1<<20)
			require.NoError(t, err)
			require.NoError(t, m.CopyFromAsync(0, p, 0, 1<<20, nil))
			require.NoError(t, w.Synchronize())
			got := make([]byte, 1<<20)
			require.NoError(t, m.CopyTo(got, 0))
			require.Equal(t, host, got)
			require.NoError(t, p.Free())
			require.NoError(t, m.Free())
			require.NotNil(t, host)
		})
	})
}

func TestKernelsAndModules(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		w := r.worker(t, 0)
		do(t, w, func() {
			m, err := w.LoadModule("kernels", "test.ptx", []byte(testPTX))
			require.NoError(t, err)
			fill, err := m.Function("fill32")
			require.NoError(t, err)
			a, err := fill.Attributes()
			require.NoError(t, err)
			t.Logf("fill32: %+v", a)
			require.Positive(t, a.Registers)
			require.NoError(t, fill.SetMaxDynamicShared(64<<10))
			require.NoError(t, fill.SetCarveout(100))

			const words = 1000
			mem, err := w.Alloc("out", 4*words)
			require.NoError(t, err)
			s, err := w.NewStream("s")
			require.NoError(t, err)
			start, err := w.NewEvent("timer")
			require.NoError(t, err)
			stop, err := w.NewEvent("timer")
			require.NoError(t, err)
			fence, err := w.NewFence("order")
			require.NoError(t, err)
			for name, l := range map[string]Launch{
				"plain":        {Grid: Dim{X: 4}, Block: Dim{X: 256}},
				"shared":       {Grid: Dim{X: 4}, Block: Dim{X: 256}, Shared: 60 << 10},
				"cooperative":  {Grid: Dim{X: 4}, Block: Dim{X: 256}, Cooperative: true},
				"programmatic": {Grid: Dim{X: 4}, Block: Dim{X: 256}, Programmatic: true},
				"clusters":     {Grid: Dim{X: 4}, Block: Dim{X: 256}, Cluster: Dim{X: 2}},
			} {
				if w.Device().Major < 9 && (l.Programmatic || l.Cluster.X > 0) {
					t.Logf("%s: sm_%d%d has none", name, w.Device().Major, w.Device().Minor)
					continue
				}
				require.NoError(t, mem.Fill(0, 4*words, 0, s))
				require.NoError(t, start.Record(s))
				args := NewArgs(3).Memory(0, mem, 0).Uint32(1, 0xDECADE).Uint32(2, words)
				if err := fill.Launch(s, l, args); err != nil {
					t.Errorf("%s: %v", name, err)
					continue
				}
				require.NoError(t, stop.Record(s))
				require.NoError(t, fence.Record(s))
				require.NoError(t, s.Wait(fence))
				require.NoError(t, s.Synchronize(), name)
				got := make([]byte, 4*words)
				require.NoError(t, mem.CopyTo(got, 0))
				require.Equal(t, words32(0xDECADE, words), got, name)
				took, err := stop.Since(start)
				require.NoError(t, err)
				require.Positive(t, took, name)
				done, err := stop.Done()
				require.NoError(t, err)
				require.True(t, done)
			}
			_, err = m.Function("nothing")
			require.ErrorIs(t, err, codeNotFound)
			for _, f := range []func() error{mem.Free, s.Close, start.Close, stop.Close, fence.Close, m.Close} {
				require.NoError(t, f())
			}
		})
	})
}

func TestModuleErrorsCarryTheCompilersLog(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		w := r.worker(t, 0)
		do(t, w, func() {
			for i := range 3 { // the log's length is an in/out parameter: the third log must be as good as the first
				_, err := w.LoadModule("kernels", "bogus.ptx",
					[]byte(".version 6.3\n.target sm_75\n.address_size 64\nbogus;\n"))
				require.ErrorIs(t, err, Code(218))
				e, ok := errAs[*CompileError](err)
				require.True(t, ok)
				require.Contains(t, e.Log, "ptxas", "load %d", i)
				if i == 0 {
					t.Log(err)
				}
			}
			_, err := w.LoadModule("kernels", "new.ptx", []byte(".version 99.9\n.target sm_75\n.address_size 64\n"))
			require.Error(t, err)
			t.Log(err)
			require.Empty(t, w.live)
		})
	})
}

func TestGraphs(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		w := r.worker(t, 0)
		do(t, w, func() {
			m, err := w.LoadModule("kernels", "test.ptx", []byte(testPTX))
			require.NoError(t, err)
			fill, err := m.Function("fill32")
			require.NoError(t, err)
			mem, err := w.Alloc("out", 4096)
			require.NoError(t, err)
			s, err := w.NewStream("s")
			require.NoError(t, err)
			capture := func(value uint32, times int) *Graph {
				g, err := s.Capture("graphs", func() error {
					for i := range times {
						args := NewArgs(3).Memory(0, mem, int64(i)*1024).Uint32(1, value).Uint32(2, 256)
						if err := fill.Launch(s, Launch{Grid: Dim{X: 1}, Block: Dim{X: 256}}, args); err != nil {
							return err
						}
					}
					return nil
				})
				require.NoError(t, err)
				return g
			}
			read := func() []byte {
				require.NoError(t, s.Synchronize())
				got := make([]byte, 4096)
				require.NoError(t, mem.CopyTo(got, 0))
				return got
			}
			require.NoError(t, mem.Fill(0, 4096, 0, s))
			g := capture(7, 4)
			require.Equal(t, make([]byte, 4096), read(), "a capture does nothing")
			x, err := g.Instantiate("graphs")
			require.NoError(t, err)
			require.NoError(t, x.Launch(s))
			require.Equal(t, words32(7, 1024), read())

			for _, f := range []func() error{g.Close, x.Close, s.Close, mem.Free, m.Close} {
				require.NoError(t, f())
			}
		})
	})
}

// A fill of memory that was freed before the graph was instantiated is refused; a copy of it is
// not, so this is no check to rely on.
func TestGraphOfFreedMemory(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		w := r.worker(t, 0)
		do(t, w, func() {
			s, err := w.NewStream("s")
			require.NoError(t, err)
			host, err := w.AllocPinned("host", 4096)
			require.NoError(t, err)
			instantiate := func(work func(m *Memory) error) (*GraphExec, error) {
				m, err := w.Alloc("freed", 32<<20)
				require.NoError(t, err)
				g, err := s.Capture("g", func() error { return work(m) })
				require.NoError(t, err)
				require.NoError(t, m.Free())
				x, err := g.Instantiate("x")
				require.NoError(t, g.Close())
				return x, err
			}
			_, err = instantiate(func(m *Memory) error { return m.Fill(0, 4096, 1, s) })
			t.Log(err)
			require.ErrorIs(t, err, codeInvalidValue)
			x, err := instantiate(func(m *Memory) error { return m.CopyToAsync(host, 0, 0, 4096, s) })
			require.NoError(t, err)
			for _, f := range []func() error{x.Close, host.Free, s.Close, w.Err} {
				require.NoError(t, f())
			}
		})
	})
}

func TestCaptureEndsWhateverHappens(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		w := r.worker(t, 0)
		do(t, w, func() {
			s, err := w.NewStream("s")
			require.NoError(t, err)
			_, err = s.Capture("g", func() error { return assert.AnError })
			require.ErrorIs(t, err, assert.AnError)

			_, err = s.Capture("g", func() error { return s.Synchronize() })
			require.Error(t, err)
			t.Log(err)

			require.PanicsWithValue(t, "oops", func() { _, _ = s.Capture("g", func() error { panic("oops") }) })

			require.NoError(t, s.Synchronize(), "the stream works again")
			require.Len(t, w.live, 1)
			require.NoError(t, s.Close())
		})
	})
}

func TestOutOfMemory(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		w := r.worker(t, 0)
		do(t, w, func() {
			m, err := w.Alloc("weights", 1<<20)
			require.NoError(t, err)
			n := w.Device().TotalMemory + 1<<30
			_, err = w.Alloc("kv_cache", n)
			require.ErrorIs(t, err, ErrOutOfMemory)
			e, ok := errAs[*AllocError](err)
			require.True(t, ok)
			require.Positive(t, e.Free)
			require.Contains(t, err.Error(), "for kv_cache")
			require.Contains(t, err.Error(), "weights 1.0 MiB")
			t.Log(err)
			require.NoError(t, w.Err(), "not fatal")
			require.NoError(t, m.CopyFrom(0, []byte{1}))
			require.NoError(t, m.Free())
		})
	})
}

func TestBusyWorkIsNotDone(t *testing.T) {
	r := gpuRig(t) // the stub's work takes no time
	w := r.worker(t, 0)
	do(t, w, func() {
		m, err := w.LoadModule("k", "test.ptx", []byte(testPTX))
		require.NoError(t, err)
		spin, err := m.Function("spin")
		require.NoError(t, err)
		s, err := w.NewStream("s")
		require.NoError(t, err)
		e, err := w.NewFence("e")
		require.NoError(t, err)
		require.NoError(t, spin.Launch(s, Launch{}, NewArgs(1).Uint64(0, uint64(50*time.Millisecond))))
		require.NoError(t, e.Record(s))
		done, err := s.Done()
		require.NoError(t, err)
		require.False(t, done)
		done, err = e.Done()
		require.NoError(t, err)
		require.False(t, done)
		began := time.Now()
		require.NoError(t, s.Synchronize())
		require.Greater(t, time.Since(began), 20*time.Millisecond)
		for _, f := range []func() error{e.Close, s.Close, m.Close} {
			require.NoError(t, f())
		}
	})
}
