package cudarunner

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/enginetest/enginetest/cuda"
)

// prefill times prompts: steps of several sizes, everything included, and what their kernels take.
func (m *measurement) prefill() {
	for _, chunk := range []int{1, 4, 16, 32} { // sequences of 512 in a step
		var times []time.Duration
		b := batchOf(chunk, 0, 512)
		for range 4 {
			start := time.Now()
			for range 32 / chunk {
				_, err := m.r.Execute(b)
				must(err)
			}
			times = append(times, time.Since(start))
		}
		t := median(times)
		m.line("prefill of 32 x 512, %d tokens a step: %.1f ms (least %.1f), %.0f k tok/s", chunk*512, t.Seconds()*1e3,
			times[0].Seconds()*1e3, 16384/t.Seconds()/1e3)
	}
	r := m.r
	for _, pause := range []time.Duration{0, 200 * time.Millisecond} { // its power limit holds a busy GPU back
		var times []time.Duration
		b := batchOf(32, 0, 512)
		for range 7 {
			time.Sleep(pause)
			start := time.Now()
			_, err := r.Execute(b)
			must(err)
			times = append(times, time.Since(start))
		}
		t := median(times)
		m.line("prefill of 32 x 512 in a step, %s between: %.1f ms (least %.1f), %.0f k tok/s", pause, t.Seconds()*1e3,
			times[0].Seconds()*1e3, 16384/t.Seconds()/1e3)
	}
	b := batchOf(16, 0, 512) // a pass of 8192 rows
	var s *step
	must(r.worker.Do(func() (err error) {
		s = &step{tokens: passRows, splits: 1, maxTable: 32, tiles: tilesOf(b)}
		s.in, err = r.feed.upload(b, nil, passRows, 16, 32)
		return err
	}))
	t := m.device(3, func() error {
		return r.prefill(s, 0, output{r.work.attn.at, r.work.attn.plane, round, r.work.attn.kb})
	})
	m.line("attention of half the prefill, one layer: %.1f us (16 layers %.1f ms)", t.Seconds()*1e6, 16*t.Seconds()*1e3)
	t = m.device(3, func() error { return r.qkv(s, 0) })
	m.line("queries, keys and values of half the prefill, one layer: %.1f us", t.Seconds()*1e6)
	t = m.device(5, func() error { s.pending, s.bias = 0, 0; return r.forward(s) })
	m.line("the kernels of half the prefill alone: %.1f ms as a graph", t.Seconds()*1e3)
	m.line("kernel by kernel: %s", m.profile(func() error { s.pending, s.bias = 0, 0; return r.forward(s) }))
}

// profile times each launch of f by itself: the sums by kernel.
func (m *measurement) profile(f func() error) string {
	type span struct {
		name string
		a, b *cuda.Event
	}
	r := m.r
	sums, line := map[string]time.Duration{}, ""
	must(r.worker.Do(func() error {
		var spans []span
		r.kernels.around = func(name string, _ cuda.Dim, _ []any, launch func() error) error {
			a, err := r.worker.NewEvent("report")
			if err != nil {
				return err
			}
			b, err := r.worker.NewEvent("report")
			spans = append(spans, span{name, a, b})
			return cmp.Or(err, a.Record(r.stream), launch(), b.Record(r.stream))
		}
		defer func() { r.kernels.around = nil }()
		if err := cmp.Or(f(), r.stream.Synchronize()); err != nil {
			return err
		}
		for _, s := range spans {
			t, err := s.b.Since(s.a)
			if err := cmp.Or(err, s.a.Close(), s.b.Close()); err != nil {
				return err
			}
			sums[s.name] += t
		}
		return nil
	}))
	total := time.Duration(0)
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		line += fmt.Sprintf(" %s %.2f", name, sums[name].Seconds()*1e3)
		total += sums[name]
	}
	return fmt.Sprintf("%.2f ms:%s", total.Seconds()*1e3, line)
}
