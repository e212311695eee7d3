package cudarunner

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/ledger"
)

// report measures a Llama of 1.24 billion parameters on the GPU: one line a figure.
// ENGINETEST_GPU_REPORT is a folder with room for 2.5 GB.
func report() string {
	m := &measurement{dir: filepath.Join(os.Getenv("ENGINETEST_GPU_REPORT"), "llama-1b")}
	m.part("checkpoint", m.write)
	m.part("load", m.load)
	m.part("matrices", m.matrices)
	m.part("attention", m.attention)
	for _, n := range []int{1, 8, 32, 64} {
		m.part(fmt.Sprintf("decode %d", n), func() { m.decode(n, 128, 64) })
	}
	m.part("sampling", m.sampling)
	m.part("decode 1, context 4096", func() { m.decode(1, 4096, 32) })
	m.part("prefill", m.prefill)
	m.part("variants", m.variants)
	if m.r != nil {
		m.part("close", func() { must(m.r.Close()) })
	}
	return m.out.String()
}

type measurement struct {
	dir string
	out strings.Builder
	r   *Runner
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// part runs one part; what fails is a line. ENGINETEST_GPU_PARTS, a regular expression, chooses
// among them.
func (m *measurement) part(name string, f func()) {
	if only := os.Getenv("ENGINETEST_GPU_PARTS"); !slices.Contains([]string{"checkpoint", "load", "close"}, name) &&
		!regexp.MustCompile(only).MatchString(name) {
		return
	}
	defer func() {
		if v := recover(); v != nil {
			m.line("%s FAILED: %v", name, v)
		}
	}()
	f()
}

func (m *measurement) line(format string, args ...any) {
	fmt.Fprintf(&m.out, format+"\n", args...)
	fmt.Printf("  | "+format+"\n", args...)
}

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

func (m *measurement) write() {
	must(os.MkdirAll(m.dir, 0o755))
	if _, err := os.Stat(filepath.Join(m.dir, "config.json")); err == nil {
		return
	}
	start := time.Now()
	must(fixtures.WriteCheckpoint(m.dir, fixtures.Shape1B()))
	m.line("writing the checkpoint: %.1f s", time.Since(start).Seconds())
}

func (m *measurement) open() (*Runner, time.Duration) {
	d, err := cuda.Open()
	must(err)
	v, err := d.Device("0")
	must(err)
	ckpt, err := checkpoint.Open(m.dir)
	must(err)
	start := time.Now()
	r, err := New(ckpt, Options{Device: v, Ledger: ledger.New(false), MaxModelLen: 8192, MaxNumBatchedTokens: 16384})
	must(err)
	return r, time.Since(start)
}

func (m *measurement) load() {
	for range 3 {
		if m.r != nil {
			start := time.Now()
			must(m.r.Close())
			m.line("close: %.3f s", time.Since(start).Seconds())
		}
		var took time.Duration
		m.r, took = m.open()
		m.line("New, context included: %.3f s, of it kernels and weights %s", took.Seconds(), m.r.took)
	}
	start := time.Now()
	must(m.r.AllocateKV(4096))
	m.line("AllocateKV(4096): %.3f s", time.Since(start).Seconds())
	var held []string
	for owner, n := range ledger.ByOwner(m.r.Holdings()) {
		held = append(held, fmt.Sprintf("%s %s", owner, ledger.FormatBytes(n)))
	}
	slices.Sort(held)
	m.line("holdings: %s", strings.Join(held, ", "))
}

// device times what f queues, as a graph, by events: the median of n replays.
func (m *measurement) device(n int, f func() error) time.Duration {
	var times []time.Duration
	must(m.r.worker.Do(func() error {
		r := m.r
		if err := f(); err != nil {
			return err
		}
		if err := r.stream.Synchronize(); err != nil {
			return err
		}
		g, err := r.stream.Capture("report", f)
		if err != nil {
			return err
		}
		x, err := g.Instantiate("report")
		if err != nil {
			return err
		}
		a, err := r.worker.NewEvent("report")
		if err != nil {
			return err
		}
		b, err := r.worker.NewEvent("report")
		if err != nil {
			return err
		}
		for range n {
			for _, err := range []error{
				a.Record(r.stream), x.Launch(r.stream), b.Record(r.stream),
				r.stream.Synchronize(),
			} {
				if err != nil {
					return err
				}
			}
			t, err := b.Since(a)
			if err != nil {
				return err
			}
			times = append(times, t)
		}
		return cmp.Or(a.Close(), b.Close(), x.Close(), g.Close())
	}))
	return median(times)
}

// matrices times each matrix over all layers, alone, for several numbers of rows.
func (m *measurement) matrices() {
	m.matricesOf(1, 8, 16, 32, 64, 128, 512, 2048, 8192)
	m.others()
}

func (m *measurement) matricesOf(counts ...int) {
	r := m.r
	w := &r.work
	for _, rows := range counts {
		mode, total := r.mode(rows), time.Duration(0)
		line := ""
		for _, k := range []struct {
			name string
			of   func(l *layer) error
			size int
		}{
			{"qkv", func(l *layer) error {
				if rows == 1 {
					return r.gemv(l.qkv, w.x, l.norm[checkpoint.AttentionNorm], w.ptr(w.qkv), store, false)
				}
				_, err := r.product(l.qkv, w.h, mode, rows, w.ptr(w.qkv), l.qkv.rows, store, output{})
				return err
			}, 3072 * 2048},
			{"o", func(l *layer) error {
				if rows == 1 {
					return r.gemv(l.o, w.attn1, 0, w.ptr(w.x), add, true)
				}
				return r.addProduct(&step{tokens: rows}, l.o, w.attn, mode, 0)
			}, 2048 * 2048},
			{"gate+up", func(l *layer) error {
				if rows == 1 {
					return r.gemv(l.gateUp, w.x, l.norm[checkpoint.MLPNorm], w.ptr(w.mlp1), silu, true)
				}
				_, err := r.product(l.gateUp, w.h, mode, rows, 0, 0, silu,
					output{w.mlp.at, w.mlp.plane, mode, w.mlp.kb})
				return err
			}, 16384 * 2048},
			{"down", func(l *layer) error {
				if rows == 1 {
					return r.gemv(l.down, w.mlp1, 0, w.ptr(w.x), add, true)
				}
				return r.addProduct(&step{tokens: rows}, l.down, w.mlp, mode, 0)
			}, 8192 * 2048},
		} {
			t := m.device(10, func() error {
				for i := range r.layers {
					if err := k.of(&r.layers[i]); err != nil {
						return err
					}
				}
				return nil
			}) / 16
			total += 16 * t
			rate := fmt.Sprintf("%.2f TB/s", 2*float64(k.size)/t.Seconds()/1e12)
			if rows > 64 {
				rate = fmt.Sprintf("%.0f TFLOP/s", 2*float64(rows)*float64(k.size)/t.Seconds()/1e12)
			}
			line += fmt.Sprintf("  %s %.1f us (%s)", k.name, t.Seconds()*1e6, rate)
		}
		if rows <= 64 {
			t := m.device(10, func() error {
				if rows == 1 {
					return r.gemv(r.lmHead, w.x, r.norm, w.ptr(w.logits), store, false)
				}
				_, err := r.product(r.lmHead, w.last, mode, rows, w.ptr(w.logits), r.VocabSize, store, output{})
				return err
			})
			total += t
			line += fmt.Sprintf("  lm_head %.1f us (%.2f TB/s)", t.Seconds()*1e6, 2*128256*2048/t.Seconds()/1e12)
		}
		m.line("%5d rows, mode %d: all %.3f ms:%s", rows, mode, total.Seconds()*1e3, line)
	}
}

// others times what is not a matrix.
func (m *measurement) others() {
	r := m.r
	w := &r.work
	for _, rows := range []int{1, 32, 8192} {
		t := m.device(10, func() error {
			for i := range r.layers {
				if err := r.normalize(&step{tokens: rows, pending: min(rows-1, 1)}, r.layers[i].norm[checkpoint.AttentionNorm], rows, 0, w.h,
					r.mode(rows)); err != nil {
					return err
				}
			}
			return nil
		}) / 16
		m.line("%5d rows: norm %.1f us", rows, t.Seconds()*1e6)
	}
	for _, rows := range []int{1, 32} {
		t := m.device(10, func() error { return r.drawer.draw(&step{tokens: rows, in: addresses{draws: w.ptr(w.h1)}}, rows) })
		m.line("%5d rows: draw %.1f us", rows, t.Seconds()*1e6)
	}
}

// batchOf makes a batch of n sequences with this many new tokens each behind a context.
func batchOf(n, context, fresh int) *modelrunner.Batch {
	b := &modelrunner.Batch{}
	blocks := (context + fresh + 15) / 16
	for i := range n {
		q := modelrunner.Seq{
			Start: len(b.Tokens), Len: fresh, Context: context + fresh, PromptLogprobs: -1,
			Sampler: &sample.State{Params: sample.Params{Logprobs: -1}},
		}
		for j := range blocks {
			q.Blocks = append(q.Blocks, int32((i*blocks+j*7)%4096))
		}
		for j := range fresh {
			at := context + j
			b.Tokens = append(b.Tokens, int32((i*31+j*17)%128256))
			b.Positions = append(b.Positions, int32(at))
			b.Slots = append(b.Slots, q.Blocks[at/16]*16+int32(at%16))
		}
		b.Seqs = append(b.Seqs, q)
	}
	return b
}

func (m *measurement) attention() {
	r := m.r
	for _, c := range []struct{ rows, context int }{{1, 128}, {1, 1024}, {1, 4096}, {8, 256}, {32, 256}, {32, 2048}} {
		b := batchOf(c.rows, c.context-1, 1)
		var rows []wanted
		var s *step
		must(r.worker.Do(func() (err error) {
			if err := r.ropes[0].fill(c.context); err != nil {
				return err
			}
			s = &step{tokens: c.rows, decode: true, splits: r.attentionSplits(c.rows, c.context), maxTable: 256}
			s.in, err = r.feed.upload(b, rows, c.rows, c.rows, s.maxTable)
			s.in.seqs = 0
			return err
		}))
		line := ""
		best := s.splits
		for _, splits := range []int{best, 1, 2, 4, 8, 16, 32} {
			if c.rows*8*splits > maxUnits {
				continue
			}
			s.splits = splits
			t := m.device(10, func() error {
				for i := range r.layers {
					if err := r.attend(s, i, 1, output{
						r.work.attn.at, r.work.attn.plane, r.mode(c.rows),
						r.work.attn.kb,
					}); err != nil {
						return err
					}
				}
				return nil
			}) / 16
			line += fmt.Sprintf("  %d: %.1f us", splits, t.Seconds()*1e6)
		}
		m.line("attention of %d rows, context %d (splits: time, the chosen first):%s", c.rows, c.context, line)
	}
}

// decode times steps, everything included, as the engine's loop sees them, which is on the runner's
// thread; and from outside.
func (m *measurement) decode(n, context, steps int) {
	var times, outside []time.Duration
	var last *modelrunner.Batch
	one := func(i int) time.Duration {
		last = batchOf(n, context+i, 1)
		start := time.Now()
		_, err := m.r.Execute(last)
		must(err)
		return time.Since(start)
	}
	must(m.r.OnThread(func() error {
		for i := range steps + 3 {
			if t := one(i); i >= 3 {
				times = append(times, t)
			}
		}
		return nil
	}))
	for i := range steps {
		outside = append(outside, one(i))
	}
	t := median(times)
	var s *step
	must(m.r.worker.Do(func() (err error) { // the graph alone
		r := m.r
		s = &step{
			tokens: bucket(n, 64), decode: true, splits: r.attentionSplits(bucket(n, 64), context+steps),
			maxTable: 512,
		}
		rows := make([]wanted, n)
		for i := range rows {
			rows[i] = wanted{row: i, seq: i, state: last.Seqs[i].Sampler}
		}
		s.in, err = r.feed.upload(last, rows, s.tokens, s.tokens, s.maxTable)
		s.in.seqs = 0
		return err
	}))
	g := m.device(30, func() error { return m.r.graphs.decodeKernels(s) })
	m.line("decode of %d at context %d: %.3f ms a step (median; least %.3f), %.0f tok/s; graph alone %.3f ms; from another thread %.3f ms", n, context,
		t.Seconds()*1e3, times[0].Seconds()*1e3, float64(n)/t.Seconds(), g.Seconds()*1e3, median(outside).Seconds()*1e3)
}
