package scheduler

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/internal/linear"
)

// queueFor adds n sequences of one client.
func queueFor(t *testing.T, r *rig, client any, n, output int) []*Seq {
	t.Helper()
	seqs := make([]*Seq, n)
	for i := range seqs {
		seqs[i] = seq(ids(3, i), output)
		seqs[i].Client = client
		require.NoError(t, r.Add(seqs[i]))
	}
	return seqs
}

func (r *rig) runningOf(client any) int {
	n := 0
	for _, q := range r.running {
		if q.client.key == client {
			n++
		}
	}
	return n
}

// A newcomer gets its place in the next step, although another client holds all places and queues
// for more: it waits neither for the other's queue nor for its long outputs.
func TestHogDelaysNoNewcomer(t *testing.T) {
	r := newRig(t, Config{MaxSeqs: 8, MaxTokens: 64, Chunked: true}, 512, 4, true)
	hog := queueFor(t, r, "hog", 500, 60)
	for range 5 {
		require.True(t, r.step(t))
	}
	require.Equal(t, 8, r.runningOf("hog"))
	one := queueFor(t, r, "newcomer", 1, 4)[0]
	for n := range 4 {
		require.True(t, r.step(t))
		require.Len(t, one.Tokens, 3+n+1, "one token per step from the first step on")
	}
	require.True(t, one.done)
	assert.Equal(t, 1, r.Preemptions(), "one place was taken, once")
	r.drain(t)
	for _, q := range hog {
		require.Equal(t, want(r, q.Tokens[:3], 60), q.Tokens, "what was preempted gives the same")
	}
}

// Without KV blocks for a newcomer a client that holds more than its share gives some back.
func TestHogOfBlocksDelaysNoNewcomer(t *testing.T) {
	r := newRig(t, Config{MaxSeqs: 64, MaxTokens: 64, Chunked: true}, 8, 64, true)
	queueFor(t, r, "hog", 100, 60)
	for range 5 {
		require.True(t, r.step(t))
	}
	require.Equal(t, 8, r.runningOf("hog"), "one block each, and no block is left")
	one := queueFor(t, r, "newcomer", 1, 4)[0]
	steps := 0
	for ; !one.done; steps++ {
		require.Less(t, steps, 6, "it waits for the hog")
		require.True(t, r.step(t))
	}
	r.drain(t)
}

// Clients that queue without end get the same number of places, whatever they queue and in
// whichever order they came; with few places and short outputs they take turns.
func TestClientsShareEvenly(t *testing.T) {
	for _, output := range []int{1, 30} {
		r := newRig(t, Config{MaxSeqs: 3, MaxTokens: 64, Chunked: true}, 512, 4, true)
		tokens := map[any]int{}
		var all []*Seq
		for _, c := range []struct {
			client string
			n      int
		}{{"a", 400}, {"b", 40}, {"c", 4000}} {
			all = append(all, queueFor(t, r, c.client, c.n, output)...)
		}
		for range 36 {
			require.True(t, r.step(t))
		}
		for _, q := range all {
			tokens[q.Client] += len(q.Tokens) - q.PromptLen
		}
		assert.Equal(t, map[any]int{"a": 36, "b": 36, "c": 36}, tokens, "outputs of %d tokens", output)
	}
}

// A client that has been away starts at the others' virtual time: it neither owes nor is owed
// turns.
func TestAbsenceEarnsNothing(t *testing.T) {
	r := newRig(t, Config{MaxSeqs: 1, MaxTokens: 64, Chunked: true}, 512, 4, true)
	queueFor(t, r, "a", 200, 1)
	for range 100 {
		require.True(t, r.step(t))
	}
	b := queueFor(t, r, "b", 50, 1)
	for range 20 {
		require.True(t, r.step(t))
	}
	done := 0
	for _, q := range b {
		if q.done {
			done++
		}
	}
	assert.InDelta(t, 10, done, 1)
	r.drain(t)
	assert.Empty(t, r.clients.byKey, "clients are forgotten with their last sequence")
}

// Sequences leave a queue in constant time: a request of n sequences that ends takes n steps, not
// n².
func TestManySequencesEndInLinearTime(t *testing.T) {
	linear.Check(t, 2000, 32_000, func(n int) func() {
		r := newRig(t, Config{MaxSeqs: 8, MaxTokens: 64, Chunked: true}, 512, 4, true)
		seqs := make([]Seq, n)
		for i := range seqs {
			seqs[i] = Seq{Tokens: []int32{1, 2, 3}, PromptLen: 3, MaxLen: 4, PromptLogprobs: -1}
			if i > 0 {
				seqs[i].Leader = &seqs[0]
			}
			require.NoError(t, r.Add(&seqs[i]))
		}
		require.Equal(t, n, r.Waiting())
		return func() {
			for i := range seqs { // the newest first: the end of a list that is searched from its front
				r.Finish(&seqs[n-1-i])
			}
			require.Zero(t, r.Waiting())
		}
	})
}
