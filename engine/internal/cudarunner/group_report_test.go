package cudarunner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/ledger"
)

// TestTwoGPUsReport measures a Llama of 1.24 billion parameters on one GPU and on two, and the
// all-reduce by itself: one line a figure. ENGINETEST_GPU_REPORT2 is a folder with room for 2.5 GB.
func TestTwoGPUsReport(t *testing.T) {
	root := os.Getenv("ENGINETEST_GPU_REPORT2")
	if root == "" {
		t.Skip("ENGINETEST_GPU_REPORT2 is not set: no measurement is wanted")
	}
	m := &groupMeasurement{t: t, devices: gpus(t, 2), dir: filepath.Join(root, "llama-1b")}
	if _, err := os.Stat(filepath.Join(m.dir, "config.json")); err != nil {
		require.NoError(t, os.MkdirAll(m.dir, 0o755))
		require.NoError(t, fixtures.WriteCheckpoint(m.dir, fixtures.Shape1B()))
	}
	one := m.open(1, Options{})
	m.steps("one GPU", one)
	require.NoError(t, one.Close())
	own := m.open(2, Options{AllReduce: Own})
	m.steps("two GPUs, own", own)
	m.reduces("own, in words", wordFloats, func(r *Runner) { r.group.mailbox.fast = wordFloats })
	m.reduces("own, in blocks", 1<<30, func(r *Runner) { r.group.mailbox.fast = 0 })
	require.NoError(t, own.Close())
	nccl := m.open(2, Options{AllReduce: NCCL})
	if nccl == nil {
		return
	}
	m.reduces("NCCL", 1<<30, func(*Runner) {})
	m.steps("two GPUs, NCCL", nccl)
	require.NoError(t, nccl.Close())
	again := m.open(1, Options{})
	m.steps("one GPU, again", again)
	require.NoError(t, again.Close())
}

type groupMeasurement struct {
	t       *testing.T
	devices []cuda.Device
	dir     string
	link    *link
}

func (m *groupMeasurement) line(format string, args ...any) { fmt.Printf("  | "+format+"\n", args...) }

func (m *groupMeasurement) open(n int, o Options) modelrunner.Runner {
	ckpt, err := checkpoint.Open(m.dir)
	require.NoError(m.t, err)
	o.Ledger, o.MaxModelLen, o.MaxNumBatchedTokens = ledger.New(false), 8192, 16384
	o.linked = func(l *link) { m.link = l }
	began := time.Now()
	var r modelrunner.Runner
	if n == 1 {
		o.Device = m.devices[0]
		r, err = New(ckpt, o)
	} else {
		r, err = NewGroup(ckpt, m.devices[:n], o, nil)
	}
	if errors.Is(err, ErrNoNCCL) {
		m.line("%v", err)
		return nil
	}
	require.NoError(m.t, err)
	took := time.Since(began)
	require.NoError(m.t, r.AllocateKV(4096))
	by := ledger.ByOwner(r.Holdings())
	m.line("%d GPUs %s: opened in %.3f s; all_reduce %s, nccl %s, weights %s, both together", n, o.AllReduce,
		took.Seconds(),
		ledger.FormatBytes(by[mailboxOwner]), ledger.FormatBytes(by["nccl"]), ledger.FormatBytes(by[weights]))
	return r
}

// steps times decode and prefill, everything included, as the engine's loop sees them.
func (m *groupMeasurement) steps(name string, r modelrunner.Runner) {
	for _, n := range []int{1, 32} {
		var times []time.Duration
		require.NoError(m.t, modelrunner.OnThread(r, func() error {
			for i := range 60 {
				b := batchOf(n, 128+i, 1)
				began := time.Now()
				if _, err := r.Execute(b); err != nil {
					return err
				}
				if i >= 8 {
					times = append(times, time.Since(began))
				}
			}
			return nil
		}))
		step := median(times)
		m.line("%s: decode of %d: %.3f ms a step (least %.3f), %.0f tok/s", name, n, step.Seconds()*1e3,
			times[0].Seconds()*1e3, float64(n)/step.Seconds())
	}
	for _, chunk := range []int{4, 32} { // sequences of 512 in a step
		var times []time.Duration
		for range 4 {
			began := time.Now()
			for range 32 / chunk {
				_, err := r.Execute(batchOf(chunk, 0, 512))
				require.NoError(m.t, err)
			}
			times = append(times, time.Since(began))
		}
		pass := median(times)
		m.line("%s: prefill of 32 x 512, %d tokens a step: %.1f ms (least %.1f), %.0f k tok/s", name, chunk*512,
			pass.Seconds()*1e3, times[0].Seconds()*1e3, 16384/pass.Seconds()/1e3)
	}
}

// reduces times the all-reduce, what adds it to the residual stream included: graphs of 20 on both
// devices, by events; the median of 20 launches.
func (m *groupMeasurement) reduces(name string, most int, change func(*Runner)) {
	for _, r := range m.link.runners {
		change(r)
	}
	line := ""
	for bytes := 8 << 10; bytes <= 32<<20; bytes *= 2 {
		if bytes/4 > most {
			break
		}
		took, err := m.reduce(bytes / 4)
		if err != nil {
			m.line("%s, %d KiB: %v", name, bytes>>10, err)
			return
		}
		line += fmt.Sprintf("  %d KiB %.1f us", bytes>>10, took.Seconds()*1e6)
		if bytes >= 1<<20 {
			line += fmt.Sprintf(" (%.0f GB/s)", float64(bytes)/took.Seconds()/1e9)
		}
	}
	m.line("all-reduce, %s:%s", name, line)
}

func (m *groupMeasurement) reduce(floats int) (time.Duration, error) {
	const inGraph, launches = 20, 20
	var wg sync.WaitGroup
	errs, times := make([]error, len(m.link.runners)), make([]time.Duration, len(m.link.runners))
	for i, r := range m.link.runners {
		wg.Go(func() {
			errs[i] = r.worker.Do(func() (err error) {
				times[i], err = timeReduce(r, floats, inGraph, launches)
				return err
			})
			if errs[i] != nil {
				m.link.Abort()
			}
		})
	}
	wg.Wait()
	return times[0] / inGraph, errors.Join(errs...)
}

func timeReduce(r *Runner, floats, inGraph, launches int) (time.Duration, error) {
	rows := floats / (r.work.h.kb * 32)
	all := func() error {
		for range inGraph {
			if err := r.group.reduce(r.work.x, rows, 1, 0); err != nil {
				return err
			}
		}
		return nil
	}
	if err := errors.Join(all(), r.stream.Synchronize()); err != nil {
		return 0, err
	}
	g, err := r.stream.Capture("report", all)
	if err != nil {
		return 0, err
	}
	x, err := g.Instantiate("report")
	if err != nil {
		return 0, err
	}
	a, errA := r.worker.NewEvent("report")
	b, errB := r.worker.NewEvent("report")
	if err := errors.Join(errA, errB); err != nil {
		return 0, err
	}
	var times []time.Duration
	for range launches {
		// the first graph lets the two ranks meet, the second one is timed
		if err := errors.Join(x.Launch(r.stream), a.Record(r.stream), x.Launch(r.stream), b.Record(r.stream),
			r.stream.Synchronize()); err != nil {
			return 0, err
		}
		t, err := b.Since(a)
		if err != nil {
			return 0, err
		}
		times = append(times, t)
	}
	return median(times), errors.Join(a.Close(), b.Close(), x.Close(), g.Close(), r.group.waited())
}
