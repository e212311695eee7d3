package scheduler

import (
	"slices"

	"github.com/enginetest/enginetest/engine/internal/kvcache"
)

// Tier is a second prefix cache, below the device's: *offload.Tier.
type Tier interface {
	// Offer stores computed blocks, as it can.
	Offer(keys []kvcache.Hash, blocks []int32)
	// Match says how many of the blocks it can load, from the first on.
	Match(keys []kvcache.Hash) int
	// Load copies blocks to the device; Settle calls done with how many came, unless the load was given up.
	Load(keys []kvcache.Hash, blocks []int32, done func(loaded int)) (giveUp func())
	// Yield gives up a store to free its block; false when there is none.
	Yield() bool
	// Settle takes notice of what has ended.
	Settle()
}

// fetch is a load of a waiting sequence's prefix. The sequence is in no queue meanwhile. What came is in the prefix cache afterwards, where the
// sequence finds it like any other hit.
type fetch struct {
	seq    *Seq
	first  kvcache.Hash // of the blocks that are loaded
	giveUp func()
}

// What became of a sequence that asked the tier.
type fetchResult int

const (
	nothingToFetch fetchResult = iota
	fetching
	fetchedByAnother // which it waits for
)

// fetch asks the tier for what the device's prefix cache lacks of a waiting sequence's prefix.
func (s *Scheduler) fetch(q *Seq) fetchResult {
	if q.fetched {
		return nothingToFetch
	}
	keys, cached := s.cache.Keys(&q.table, q.Tokens)
	s.tier.Match(keys[:cached]) // a hit on the device is a use of them there too
	if cached == len(keys) {
		return nothingToFetch
	}
	if slices.ContainsFunc(s.fetches, func(f *fetch) bool { return f.first == keys[cached] }) {
		return fetchedByAnother
	}
	n := s.tier.Match(keys[cached:])
	if n == 0 || !s.cache.Reserve(&q.table, q.Tokens, cached+n) {
		return nothingToFetch
	}
	q.fetched = true
	f := &fetch{seq: q, first: keys[cached]}
	s.fetches = append(s.fetches, f)
	f.giveUp = s.tier.Load(keys[cached:cached+n], q.table.Blocks()[cached:], func(loaded int) {
		s.endFetch(f)
		s.cache.Commit(&q.table, q.Tokens, (cached+loaded)*s.cache.BlockSize())
		s.cache.Free(&q.table)
		s.waiting = slices.Insert(s.waiting, 0, q)
	})
	return fetching
}

// Fetching counts the waiting sequences whose prefix is being loaded; they hold blocks.
func (s *Scheduler) Fetching() int { return len(s.fetches) }

func (s *Scheduler) endFetch(f *fetch) {
	s.fetches = slices.DeleteFunc(s.fetches, func(x *fetch) bool { return x == f })
}

// cancelFetch ends a sequence's load, if it has one. Its blocks can be given back then.
func (s *Scheduler) cancelFetch(q *Seq) {
	for _, f := range s.fetches {
		if f.seq == q {
			f.giveUp()
			s.endFetch(f)
			return
		}
	}
}
