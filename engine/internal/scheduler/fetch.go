package scheduler

import (
	"slices"

	"github.com/enginetest/enginetest/engine/internal/kvcache"
)

// Tier is a second prefix cache, below the device's: *offload.Tier.
type Tier interface {
	// Store stores computed blocks, as it can.
	Store(keys []kvcache.Hash, blocks []int32)
	// Match says how many of the blocks it can load, from the first on.
	Match(keys []kvcache.Hash) int
	// Load copies blocks to the device; Finish calls done with how many came, unless the load was
	// given up.
	Load(keys []kvcache.Hash, blocks []int32, done func(loaded int)) (giveUp func())
	// CancelStore returns up a store to free its block; false when there is none.
	CancelStore() bool
	// Finish takes notice of what has ended.
	Finish()
}

// fetch is a load of a waiting sequence's prefix. The sequence is in no queue meanwhile. What came
// is in the prefix cache afterwards, where the sequence finds it like any other hit.
type fetch struct {
	seq    *Seq
	first  kvcache.Hash // of the blocks that are loaded
	giveUp func()
	others queue // sequences that wait for the same blocks
}

// fetch asks the tier for what the device's prefix cache lacks of the prefix of a client's first
// waiting sequence. It reports whether the sequence left its client's queue for that.
func (s *Scheduler) fetch(q *Seq) bool {
	if q.fetched {
		return false
	}
	keys, cached := s.cache.Keys(&q.table, q.Tokens)
	s.tier.Match(keys[:cached]) // a hit on the device is a use of them there too
	if cached == len(keys) {
		return false
	}
	if i := slices.IndexFunc(s.fetches, func(f *fetch) bool { return f.first == keys[cached] }); i >= 0 {
		s.take(q)
		s.fetches[i].others.pushBack(q)
		return true
	}
	n := s.tier.Match(keys[cached:])
	if n == 0 || !s.cache.Reserve(&q.table, q.Tokens, cached+n) {
		return false
	}
	s.take(q)
	q.fetched = true
	f := &fetch{seq: q, first: keys[cached]}
	q.loading = f
	s.fetches = append(s.fetches, f)
	f.giveUp = s.tier.Load(keys[cached:cached+n], q.table.Blocks()[cached:], func(loaded int) {
		s.cache.Commit(&q.table, q.Tokens, (cached+loaded)*s.cache.BlockSize())
		s.cache.Free(&q.table)
		s.endFetch(f)
		s.putBack(q)
	})
	return true
}

// Fetching counts the waiting sequences whose prefix is being loaded; they hold blocks.
func (s *Scheduler) Fetching() int { return len(s.fetches) }

// endFetch forgets a load; what waited for it can be admitted.
func (s *Scheduler) endFetch(f *fetch) {
	f.seq.loading = nil
	s.fetches = slices.DeleteFunc(s.fetches, func(x *fetch) bool { return x == f })
	s.release(&f.others)
}

// cancelFetch ends a sequence's load, if it has one. Its blocks can be freed then.
func (s *Scheduler) cancelFetch(q *Seq) {
	if f := q.loading; f != nil {
		f.giveUp()
		s.endFetch(f)
	}
}
