package engine

import (
	"context"
	"slices"

	"github.com/enginetest/enginetest/llm"
)

// Stats are an engine's counters, as of its last step. Counts of tokens and requests are since
// Open.
type Stats struct {
	State   State
	Devices int // that share the model

	Waiting, Running int // sequences now
	Finished         int // requests that ended well: stop or length
	Aborted          int // requests that were cut short: Abort, a cancelled context, a shutdown
	Errored          int // requests that failed
	Preemptions      int // sequences that lost their KV blocks and were computed again

	Steps        int64
	PromptTokens int64 // of the requests that were started
	OutputTokens int64 // sampled

	KVBlocks       int // in all
	KVBlocksUsed   int // held by sequences now, or by a copy to host memory or another engine
	KVBlocksCached int // with a prefix that a new request can hit
	PrefixQueries  int // prompt tokens looked up in the prefix cache
	PrefixHits     int // and found there, in host memory or with another engine

	OffloadBlocks     int   // of host memory, in all
	OffloadBlocksUsed int   // that hold a prefix
	OffloadBytes      int64 // that they take
	OffloadPending    int   // copies under way or queued
	OffloadStores     int   // blocks copied to host memory
	OffloadHits       int   // prompt tokens copied back
	OffloadErrors     int   // copies that failed or were given up: a block less to be found, or one computed again

	ConnectorStores  int // blocks published for other engines
	ConnectorLoads   int // blocks loaded
	ConnectorHits    int // prompt tokens in them
	ConnectorErrors  int // copies that failed or were given up, as OffloadErrors
	ConnectorPending int // copies under way or queued

	SpecDrafts         int   // steps of a sequence that verified drafts
	SpecDraftTokens    int   // drafts that were verified
	SpecAcceptedTokens int   // and accepted
	SpecAcceptedPerPos []int // of these, how many were the first draft of their step, the second, …

	SleepLevel                   int // 1 or 2; 0: awake
	WeightsAsleep, KVCacheAsleep bool
}

// AcceptanceRate returns the share of drafts that were accepted; 0 when there were none.
func (s *Stats) AcceptanceRate() float64 {
	return float64(s.SpecAcceptedTokens) / float64(max(s.SpecDraftTokens, 1))
}

// speculated counts the drafts of a sequence in a step.
func (s *Stats) speculated(drafts, accepted int) {
	if drafts == 0 {
		return
	}
	s.SpecDrafts++
	s.SpecDraftTokens += drafts
	s.SpecAcceptedTokens += accepted
	for len(s.SpecAcceptedPerPos) < drafts {
		s.SpecAcceptedPerPos = append(s.SpecAcceptedPerPos, 0)
	}
	for i := range accepted {
		s.SpecAcceptedPerPos[i]++
	}
}

// clone returns a copy that shares nothing with the counters.
func (s *Stats) clone() Stats {
	c := *s
	c.SpecAcceptedPerPos = slices.Clone(s.SpecAcceptedPerPos)
	return c
}

// over is for when nothing runs and no prefix can be found any more.
func (s *Stats) over() {
	s.Waiting, s.Running, s.KVBlocksUsed, s.KVBlocksCached = 0, 0, 0, 0
	s.OffloadBlocksUsed, s.OffloadBytes, s.OffloadPending, s.ConnectorPending = 0, 0, 0, 0
}

// Activity returns how many sequences run and wait now, and how much of the KV cache they use.
func (e *Engine) Activity(context.Context) (llm.Activity, error) {
	s := e.Stats()
	a := llm.Activity{Running: s.Running, Waiting: s.Waiting}
	if s.KVBlocks > 0 {
		a.KVUsage = float64(s.KVBlocksUsed) / float64(s.KVBlocks)
	}
	return a, nil
}
