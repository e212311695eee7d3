package sample

import (
	"fmt"
	"testing"
)

func BenchmarkDraw(b *testing.B) {
	for _, vocab := range []int{32_000, 128_256, 151_936} {
		row, work := normal(vocab, 1, 3), make([]float32, vocab)
		for i := range 20 { // a few likely tokens before a broad background, as models give
			row[i*997] += 15
		}
		for _, c := range []struct {
			name string
			p    Params
		}{
			{"greedy", Params{Logprobs: -1}},
			{"temperature", Params{Temperature: 1, Logprobs: -1}},
			{"top_k=50", Params{Temperature: 1, TopK: 50, Logprobs: -1}},
			{"top_k=1000", Params{Temperature: 1, TopK: 1000, Logprobs: -1}},
			{"top_p=0.9", Params{Temperature: 1, TopP: 0.9, Logprobs: -1}},
			{"top_k=50,top_p=0.9", Params{Temperature: 1, TopK: 50, TopP: 0.9, Logprobs: -1}},
			{"min_p=0.05", Params{Temperature: 1, MinP: 0.05, Logprobs: -1}},
			{"greedy,logprobs=5", Params{Logprobs: 5}},
			{"greedy,logprobs=all", Params{Logprobs: vocab}},
		} {
			b.Run(fmt.Sprintf("vocab=%d/%s", vocab, c.name), func(b *testing.B) {
				var s Sampler
				st := &State{Params: c.p}
				for b.Loop() {
					copy(work, row)
					if _, _, err := s.Draw(st, work); err != nil {
						b.Fatal(err)
					}
					st.Params.Seed++
				}
			})
		}
	}
}

func BenchmarkPenalties(b *testing.B) {
	st := &State{Params: Params{RepetitionPenalty: 1.1, NoRepeatNGram: 3, Logprobs: -1}, Prompt: prompt[:8000]}
	row := normal(32_000, 1, 3)
	var s Sampler
	for b.Loop() {
		st.Output = append(st.Output, int32(len(st.Output)%5000))
		s.edit(st, row)
	}
}
