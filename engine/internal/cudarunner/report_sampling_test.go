package cudarunner

import (
	"fmt"
	"time"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/engine/internal/sample"
)

// sampling times decode steps whose rows all have the same parameters, beside greedy ones and
// beside the way through the host, in turns.
func (m *measurement) sampling() {
	const context, steps = 128, 40
	all := sample.Params{
		Temperature: 0.8, TopK: 50, TopP: 0.9, RepetitionPenalty: 1.1, FrequencyPenalty: 0.1,
		PresencePenalty: 0.1, Logprobs: 5,
	}
	kinds := []struct {
		name string
		p    sample.Params
		host bool
	}{
		{"greedy", sample.Params{Logprobs: -1}, false},
		{"temperature", sample.Params{Temperature: 0.8, Logprobs: -1}, false},
		{"top-k 50", sample.Params{Temperature: 0.8, TopK: 50, Logprobs: -1}, false},
		{"top-p 0.9", sample.Params{Temperature: 0.8, TopP: 0.9, Logprobs: -1}, false},
		{"top-k 50, top-p 0.9", sample.Params{Temperature: 0.8, TopK: 50, TopP: 0.9, Logprobs: -1}, false},
		{"penalties", sample.Params{
			Temperature: 0.8, RepetitionPenalty: 1.1, FrequencyPenalty: 0.1,
			PresencePenalty: 0.1, Logprobs: -1,
		}, false},
		{"5 logprobs", sample.Params{Logprobs: 5}, false},
		{"all of these", all, false},
		{"top-k 50, top-p 0.9 on the host", sample.Params{Temperature: 0.8, TopK: 50, TopP: 0.9, Logprobs: -1}, true},
		{"all of these on the host", all, true},
	}
	for _, n := range []int{1, 32} {
		times := make([][]time.Duration, len(kinds))
		states := make([][]*sample.State, len(kinds))
		for k := range kinds {
			for i := range n {
				p := kinds[k].p
				p.Seed = uint64(i)
				states[k] = append(states[k], &sample.State{Params: p, Prompt: prompts(128256, context+i)[0][i:]})
			}
		}
		for step := range steps {
			for k, kind := range kinds {
				if kind.host && step >= steps/4 {
					continue
				}
				b := batchOf(n, context+step, 1)
				for i := range b.Seqs {
					b.Seqs[i].Sampler = states[k][i]
				}
				m.r.options.HostSampling = kind.host
				start := time.Now()
				out, err := m.r.Execute(b)
				must(err)
				if step >= 3 {
					times[k] = append(times[k], time.Since(start))
				}
				for i, o := range out {
					states[k][i].Output = append(states[k][i].Output, o.Token)
				}
			}
		}
		m.r.options.HostSampling = false
		plain := median(times[0])
		for k, kind := range kinds {
			t := median(times[k])
			line := fmt.Sprintf("sampling, batch %d, %s: %.3f ms a step (%+.1f %% of greedy)", n, kind.name,
				t.Seconds()*1e3, 100*(t-plain).Seconds()/plain.Seconds())
			if !kind.host {
				line += m.samplingKernels(states[k])
			}
			m.line("%s", line)
		}
	}
}

// samplingKernels times the kernels of the last step's draw, each alone.
func (m *measurement) samplingKernels(states []*sample.State) string {
	r, n := m.r, len(states)
	b := batchOf(n, 128, 1)
	for i := range b.Seqs {
		b.Seqs[i].Sampler = states[i]
	}
	s := &step{tokens: n, decode: true}
	must(r.worker.Do(func() (err error) {
		s.in, err = r.feed.upload(b, r.feed.wantedOf(b), n, n, 16)
		s.sifted = s.in.rules != 0
		return err
	}))
	through := func(last string) float64 { // the kernels up to this one
		over := false
		r.kernels.around = func(name string, _ cuda.Dim, _ []any, launch func() error) error {
			if over {
				return nil
			}
			over = name == last
			return launch()
		}
		defer func() { r.kernels.around = nil }()
		return m.device(20, func() error { over = false; return r.drawer.draw(s, n) }).Seconds() * 1e6
	}
	line := fmt.Sprintf("; its kernels %.1f us", through(""))
	if s.sifted {
		line += ", up to"
		for _, name := range []string{"sift_edit", "sift_weigh", "sift_list", "sift_cut", "sift_race", "winner"} {
			line += fmt.Sprintf(" %s %.1f", name, through(name))
		}
	}
	return line
}

// variants times what can be chosen.
func (m *measurement) variants() {
	k := m.r.kernels
	try := func(name string, sizes ...int) {
		m.line("%s", name)
		for _, n := range sizes {
			must(m.r.worker.Do(func() error { return dropGraphs(m.r.graphs.byKey) }))
			m.part("variant", func() { m.decode(n, 128, 5) })
		}
	}
	was := *k
	for _, rw := range []int{1, 2, 4} {
		k.rowWarps = rw
		try(fmt.Sprintf("row warps %d", rw), 8, 32)
	}
	*k = was
	for _, n := range []int{1, 2, 3} {
		k.gemvBlocks = n
		try(fmt.Sprintf("gemv blocks an SM %d", n), 1)
	}
	*k = was
	for _, n := range []int{1 << 20, 128, 1} {
		k.gemvWide = n
		try(fmt.Sprintf("16 warps from %d column blocks on", n), 1)
		m.matricesOf(1)
	}
	*k = was
	k.dependent = false
	try("no programmatic launches", 1, 8, 32)
	*k = was
}
