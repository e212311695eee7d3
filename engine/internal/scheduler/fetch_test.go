package scheduler

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/enginetest/enginetest/engine/internal/cpu"
	"github.com/enginetest/enginetest/engine/internal/offload"
	"github.com/enginetest/enginetest/engine/internal/scheduler/fakerunner"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// flaky is a connector that fails every so often, and can corrupt what it gives.
type flaky struct {
	offload.Connector
	fail    float64
	corrupt bool
	hang    bool // a store, until it is given up
}

var errFlaky = errors.New("flaky")

func (f *flaky) Store(ctx context.Context, k offload.Key, read func([]byte) error) error {
	if rand.Float64() < f.fail {
		return errFlaky
	}
	if f.hang {
		<-ctx.Done()
	}
	return f.Connector.Store(ctx, k, read)
}

func (f *flaky) Load(ctx context.Context, k offload.Key, write func([]byte) error) error {
	if rand.Float64() < f.fail {
		return errFlaky
	}
	return f.Connector.Load(ctx, k, func(src []byte) error {
		if f.corrupt {
			src = append([]byte(nil), src...)
			src[0]++ // of the first token
		}
		return write(src)
	})
}

// withTier returns a rig a second tier of this many blocks in host memory.
func withTier(t require.TestingT, r *rig, blocks int) (*offload.Tier, *flaky) {
	h, err := offload.NewHost(cpu.NewAllocator(cpu.AllocatorConfig{Device: "host"}),
		int64(blocks)*fakerunner.BytesPerBlock, fakerunner.BytesPerBlock)
	require.NoError(t, err)
	f := &flaky{Connector: h}
	tier := offload.NewTier(f, r.cache, r.run, offload.Options{})
	r.UseTier(tier)
	return tier, f
}

// drainTier runs until nothing is left to do, transfers included.
func drainTier(t require.TestingT, r *rig, tier *offload.Tier) {
	for end := time.Now().Add(time.Minute); ; {
		stepped := r.step(t)
		if !stepped && tier.Stats().Pending == 0 && r.Waiting()+r.Running() == 0 {
			break
		}
		if !stepped {
			time.Sleep(10 * time.Microsecond)
		}
		require.True(t, time.Now().Before(end), "no progress: %d waiting, %d running, %d fetched", r.Waiting(),
			r.Running(), r.Fetching())
	}
	tier.Finish()
	require.Zero(t, r.cache.Stats().Used)
}

// evict fills the device with other prompts.
func evict(t *testing.T, r *rig, tier *offload.Tier) {
	for i := range 3 {
		q := seq(ids(24, 31+i), 1)
		require.NoError(t, r.Add(q))
		drainTier(t, r, tier)
	}
}

func TestFetchedPrefix(t *testing.T) {
	r := newRig(t, Config{MaxSeqs: 8, MaxTokens: 64, Chunked: true}, 8, 4, true)
	tier, _ := withTier(t, r, 100)
	first := seq(ids(17, 0), 4)
	require.NoError(t, r.Add(first))
	drainTier(t, r, tier)
	evict(t, r, tier)
	_, cached := r.cache.Keys(&seq(nil, 0).table, ids(17, 0))
	require.Zero(t, cached, "the device has lost it")

	r.steps = nil
	again := seq(ids(17, 0), 4)
	require.NoError(t, r.Add(again))
	drainTier(t, r, tier)
	assert.Equal(t, first.Tokens, again.Tokens)
	assert.Equal(t, 16, again.CachedTokens)
	assert.Equal(t, []int{1, 1, 1, 1}, r.steps, "only the last token of the prompt is computed")
	assert.Equal(t, 4, tier.Stats().Loaded)
	require.NoError(t, tier.Close(t.Context()))
}

// A load that fails is a prompt that is computed.
func TestFetchFails(t *testing.T) {
	r := newRig(t, Config{MaxSeqs: 8, MaxTokens: 64, Chunked: true}, 8, 4, true)
	tier, f := withTier(t, r, 100)
	require.NoError(t, r.Add(seq(ids(17, 0), 4)))
	drainTier(t, r, tier)
	require.NoError(t, r.cache.Reset())
	f.fail, r.steps = 1, nil
	again := seq(ids(17, 0), 4)
	require.NoError(t, r.Add(again))
	drainTier(t, r, tier)
	assert.Equal(t, want(r, ids(17, 0), 4), again.Tokens)
	assert.Zero(t, again.CachedTokens)
	assert.Equal(t, []int{17, 1, 1, 1}, r.steps)
	assert.Equal(t, 1, tier.Stats().Failed)
	require.NoError(t, tier.Close(t.Context()))
}

// A sequence that lost its blocks asks again.
func TestFetchAgainAfterAPreemption(t *testing.T) {
	r := newRig(t, Config{MaxSeqs: 8, MaxTokens: 64, Chunked: true}, 8, 4, true)
	tier, _ := withTier(t, r, 100)
	require.NoError(t, r.Add(seq(ids(17, 0), 1)))
	drainTier(t, r, tier)
	require.NoError(t, r.cache.Reset())
	q := seq(ids(17, 0), 4)
	require.NoError(t, r.Add(q))
	for r.Running() == 0 {
		r.step(t)
	}
	r.preempt(q)
	require.NoError(t, r.cache.Reset())
	drainTier(t, r, tier)
	assert.Equal(t, 8, tier.Stats().Loaded, "four blocks, twice")
	assert.Equal(t, want(r, ids(17, 0), 4), q.Tokens)
	require.NoError(t, tier.Close(t.Context()))
}

// A running sequence needs the blocks that copies hold: the copies are given up, and no one is
// preempted.
func TestCopiesYield(t *testing.T) {
	r := newRig(t, Config{MaxSeqs: 8, MaxTokens: 64, Chunked: true}, 8, 4, true)
	tier, f := withTier(t, r, 100)
	f.hang = true
	require.NoError(t, r.Add(seq(ids(16, 0), 1)))
	require.True(t, r.step(t))
	require.Equal(t, 4, r.cache.Stats().Used, "the copies hold them")
	q := seq(ids(9, 30), 20)
	require.NoError(t, r.Add(q))
	for r.step(t) {
	}
	assert.Equal(t, want(r, ids(9, 30), 20), q.Tokens)
	assert.Zero(t, r.Preemptions())
	assert.Positive(t, tier.Stats().Lost)
	require.NoError(t, tier.Close(t.Context()))
}

// A hit on the device keeps a block in host memory, too.
func TestDeviceHitIsAUse(t *testing.T) {
	r := newRig(t, Config{MaxSeqs: 8, MaxTokens: 64, Chunked: true}, 16, 4, true)
	tier, _ := withTier(t, r, 6)
	ask := func(n, first int) {
		require.NoError(t, r.Add(seq(ids(n, first), 1)))
		drainTier(t, r, tier)
	}
	ask(17, 0) // four blocks
	ask(9, 30) // two: host memory is full
	ask(17, 0) // a hit on the device
	ask(9, 50) // two more take the place of the least recently used
	keys, _ := r.cache.Keys(&seq(nil, 0).table, ids(17, 0))
	assert.Equal(t, 4, tier.Match(keys))
	require.NoError(t, tier.Close(t.Context()))
}

// Rubbish from the tier is noticed: the check above can fail.
func TestFetchedRubbishIsNoticed(t *testing.T) {
	r := newRig(t, Config{MaxSeqs: 8, MaxTokens: 64, Chunked: true}, 8, 4, true)
	tier, f := withTier(t, r, 100)
	f.corrupt = true
	first := seq(ids(17, 0), 4)
	require.NoError(t, r.Add(first))
	drainTier(t, r, tier)
	evict(t, r, tier)
	again := seq(ids(17, 0), 4)
	require.NoError(t, r.Add(again))
	drainTier(t, r, tier)
	assert.NotEqual(t, first.Tokens, again.Tokens)
	require.NoError(t, tier.Close(t.Context()))
}

// Many requests with one prefix load it once.
func TestOneFetchForAll(t *testing.T) {
	r := newRig(t, Config{MaxSeqs: 8, MaxTokens: 64, Chunked: true}, 16, 4, true)
	tier, _ := withTier(t, r, 100)
	require.NoError(t, r.Add(seq(ids(17, 0), 1)))
	drainTier(t, r, tier)
	require.NoError(t, r.cache.Reset())
	var all []*Seq
	for range 4 {
		q := seq(ids(17, 0), 3)
		all = append(all, q)
		require.NoError(t, r.Add(q))
	}
	drainTier(t, r, tier)
	assert.Equal(t, 4, tier.Stats().Loaded)
	for _, q := range all {
		assert.Equal(t, 16, q.CachedTokens)
		assert.Equal(t, want(r, ids(17, 0), 3), q.Tokens)
	}
	require.NoError(t, tier.Close(t.Context()))
}

// Whatever the sizes, the failures and the order: a sequence gives what it gives alone, and no
// block is lost.
func TestAnyScheduleWithATierGivesTheSameOutput(t *testing.T) {
	var loaded, failed, lost, preempted int
	schedule := func(t *rapid.T) {
		size := rapid.IntRange(1, 5).Draw(t, "block size")
		blocks := rapid.IntRange(4, 24).Draw(t, "blocks")
		cfg := Config{MaxSeqs: rapid.IntRange(1, 6).Draw(t, "max seqs"), Chunked: rapid.Bool().Draw(t, "chunked")}
		cfg.MaxTokens = rapid.IntRange(1, 40).Draw(t, "max tokens")
		if !cfg.Chunked {
			cfg.MaxTokens = max(cfg.MaxTokens, blocks*size)
		}
		r := newRig(t, cfg, blocks, size, true)
		tier, f := withTier(t, r, rapid.IntRange(1, 60).Draw(t, "host blocks"))
		f.fail = rapid.SampledFrom([]float64{0, 0.2}).Draw(t, "failures")
		var all []*Seq
		cut := map[*Seq]bool{}
		for range rapid.IntRange(1, 20).Draw(t, "sequences") {
			prompt := rapid.SliceOfN(rapid.Int32Range(0, 1), 1, blocks*size-1).Draw(t, "prompt")
			if len(all) > 0 && rapid.Bool().Draw(t, "again") {
				prompt = all[rapid.IntRange(0, len(all)-1).Draw(t, "of")].Sampler.Prompt
			}
			q := seq(prompt, rapid.IntRange(1, blocks*size-len(prompt)).Draw(t, "output"))
			q.PromptLogprobs = rapid.IntRange(-1, 0).Draw(t, "prompt logprobs")
			q.Client = rapid.IntRange(0, 3).Draw(t, "client")
			require.NoError(t, r.Add(q))
			all = append(all, q)
			for range rapid.IntRange(0, 6).Draw(t, "steps") {
				r.step(t)
			}
			switch rapid.IntRange(0, 9).Draw(t, "what else") {
			case 0, 1:
				victim := rapid.SampledFrom(all).Draw(t, "victim")
				cut[victim] = cut[victim] || len(victim.Tokens) < victim.MaxLen
				r.Finish(victim)
			case 2:
				if r.Running()+r.Fetching() == 0 {
					require.NoError(t, tier.Reset(context.Background()))
					require.NoError(t, r.cache.Reset())
				}
			case 3, 4, 5: // the device forgets
				drainTier(t, r, tier)
				require.NoError(t, r.cache.Reset())
			}
		}
		drainTier(t, r, tier)
		for _, q := range all {
			expect := want(r, q.Tokens[:q.PromptLen], q.MaxLen-q.PromptLen)
			if cut[q] {
				expect = expect[:len(q.Tokens)]
			} else if q.PromptLogprobs >= 0 {
				require.Len(t, r.promptLP[q], q.PromptLen-1)
			}
			require.Equal(t, expect, q.Tokens)
		}
		s := tier.Stats()
		require.LessOrEqual(t, s.Blocks, s.Capacity)
		loaded, failed, lost, preempted = loaded+s.Loaded, failed+s.Failed, lost+s.Lost, preempted+r.Preemptions()
		require.NoError(t, tier.Close(context.Background()))
	}
	for round := 0; min(loaded, lost, preempted) == 0; round++ { // few draws may lack one of them
		require.Less(t, round, 50, "nothing of this was tested")
		rapid.Check(t, schedule)
	}
	t.Logf("%d blocks loaded, %d loads failed, %d stores lost, %d preemptions", loaded, failed, lost, preempted)
}
