package modelrunner

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/enginetest/enginetest/ledger"
	"github.com/stretchr/testify/require"
)

// fakeRank notes its calls, and fails in those that it is told to.
type fakeRank struct {
	Shard
	mu    sync.Mutex
	fails map[string]error // by call; a panic when it is a *Panic
	calls []string
	step  func() error
	free  int64
}

func (f *fakeRank) call(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, name)
	err := f.fails[name]
	if p, ok := errors.AsType[*Panic](err); ok {
		panic(p.err)
	}
	return err
}

func (f *fakeRank) Device() string         { return fmt.Sprint("fake:", f.Rank) }
func (f *fakeRank) KVBytesPerBlock() int64 { return 2 }
func (f *fakeRank) FreeMemory() (int64, int64, error) {
	return f.free, 100 + f.free, f.call("FreeMemory")
}

func (f *fakeRank) AllocateKV(n int) error      { return f.call(fmt.Sprint("AllocateKV ", n)) }
func (f *fakeRank) FreeKV() error               { return f.call("FreeKV") }
func (f *fakeRank) FreeWeights(keep bool) error { return f.call(fmt.Sprint("FreeWeights ", keep)) }

func (f *fakeRank) Holdings() []ledger.Holding { return []ledger.Holding{{Device: f.Device()}} }
func (f *fakeRank) Close() error               { return f.call("Close") }
func (f *fakeRank) Sleep(keep bool) error      { return f.call(fmt.Sprint("Sleep ", keep)) }
func (f *fakeRank) WakeWeights() error         { return f.call("WakeWeights") }
func (f *fakeRank) ReadKV(block int32, b []byte) error {
	copy(b, []byte{byte(f.Rank), byte(block)})
	return f.call("ReadKV")
}
func (f *fakeRank) WriteKV(_ int32, b []byte) error { return f.call(fmt.Sprintf("WriteKV %d", b)) }

func (f *fakeRank) Execute(*Batch) ([]SeqResult, error) {
	if err := f.call("Execute"); err != nil {
		return nil, err
	}
	if err := f.step(); err != nil {
		return nil, err
	}
	return []SeqResult{{Token: int32(f.Rank)}}, nil
}

func (f *fakeRank) take() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.calls
	f.calls = nil
	return c
}

// fakeGroup has ranks that meet once a step.
func fakeGroup(t *testing.T, n int) (Runner, []*fakeRank, *Barrier) {
	t.Helper()
	ranks, devices := make([]*fakeRank, n), make([]string, n)
	for i := range devices {
		devices[i] = fmt.Sprint("fake:", i)
	}
	m := NewBarrier(n)
	g, err := NewGroup(devices, m, func(s Shard) (Rank, error) {
		r := &fakeRank{Shard: s, step: func() error {
			return m.Wait(s.Rank)
		}, free: int64(10 - s.Rank), fails: map[string]error{}}
		ranks[s.Rank] = r
		return r, nil
	})
	require.NoError(t, err)
	return g, ranks, m
}

var errBoom = errors.New("boom")

// TestGroupStepFails: whichever rank fails or panics, the others are not left waiting, the error
// names it alone, and the next step works.
func TestGroupStepFails(t *testing.T) {
	for _, n := range []int{2, 3, 5} {
		g, ranks, _ := fakeGroup(t, n)
		for bad := range n {
			for _, fault := range []error{errBoom, &Panic{err: errBoom}} {
				ranks[bad].fails["Execute"] = fault
				_, err := g.Execute(&Batch{})
				require.ErrorIs(t, err, errBoom)
				var rank *RankError
				require.ErrorAs(t, err, &rank)
				require.Equal(t, bad, rank.Rank)
				require.ErrorContains(t, err, fmt.Sprintf("rank %d (fake:%d): ", bad, bad))
				require.NotErrorIs(t, err, ErrAborted)
				delete(ranks[bad].fails, "Execute")
				results, err := g.Execute(&Batch{})
				require.NoError(t, err)
				require.Equal(t, []SeqResult{{Token: 0}}, results, "the first rank's")
			}
		}
	}
}

// TestGroupGoesToAll: every call reaches every rank, whatever fails on the way, and names who
// failed.
func TestGroupGoesToAll(t *testing.T) {
	g, ranks, _ := fakeGroup(t, 3)
	for call, do := range map[string]func() error{
		"Close":        g.Close,
		"Sleep true":   func() error { return g.(Sleeper).Sleep(true) },
		"WakeWeights":  func() error { return g.(Sleeper).WakeWeights() },
		"AllocateKV 7": func() error { return g.AllocateKV(7) },
	} {
		t.Run(call, func(t *testing.T) {
			for _, r := range ranks {
				r.fails = map[string]error{}
			}
			if call == "WakeWeights" {
				require.NoError(t, g.(Sleeper).Sleep(true))
			}
			for _, r := range ranks {
				r.take()
			}
			ranks[0].fails[call], ranks[1].fails[call] = errBoom, &Panic{err: errBoom}
			err := do()
			require.ErrorContains(t, err, "rank 0 (fake:0): boom\nrank 1 (fake:1): panic: boom")
			for _, r := range ranks {
				require.Equal(t, call, r.take()[0])
			}
		})
	}
	for _, r := range ranks {
		r.fails = map[string]error{}
	}
	free, total, err := g.FreeMemory()
	require.NoError(t, err)
	require.Equal(t, []int64{8, 108}, []int64{free, total}, "of the one that has least")
	require.Len(t, g.Holdings(), 3)
	require.EqualValues(t, 2, g.KVBytesPerBlock())
	ranks[1].fails["FreeMemory"] = errBoom
	_, _, err = g.FreeMemory()
	require.EqualError(t, err, "rank 1 (fake:1): boom")
}

// TestGroupUndoes: what one rank cannot take or wake, the others give back, and only that.
func TestGroupUndoes(t *testing.T) {
	g, ranks, _ := fakeGroup(t, 3)
	s := g.(Sleeper)
	clean := func() {
		for _, r := range ranks {
			r.take()
		}
	}
	for _, undo := range []struct{ levels, want string }{
		{"t", "true"},
		{"f", "false"},
		{"tf", "false"},
		{"ft", "false"},
	} {
		for _, l := range undo.levels {
			require.NoError(t, s.Sleep(l == 't'))
		}
		clean()
		ranks[1].fails["WakeWeights"] = errBoom
		require.EqualError(t, s.WakeWeights(), "rank 1 (fake:1): boom")
		require.Equal(t, []string{"WakeWeights", "FreeWeights " + undo.want}, ranks[0].take())
		require.Equal(t, []string{"WakeWeights"}, ranks[1].take())
		require.Equal(t, []string{"WakeWeights", "FreeWeights " + undo.want}, ranks[2].take())
		delete(ranks[1].fails, "WakeWeights")
		require.NoError(t, s.WakeWeights())
		clean()
		require.NoError(t, s.WakeWeights(), "again is nothing")
		require.Empty(t, ranks[0].take())
	}
	ranks[2].fails["AllocateKV 4"] = errBoom
	require.EqualError(t, g.AllocateKV(4), "rank 2 (fake:2): boom")
	require.Equal(t, []string{"AllocateKV 4", "FreeKV"}, ranks[0].take())
	require.Equal(t, []string{"AllocateKV 4"}, ranks[2].take())
}

// TestGroupHalfBuilt: a rank that does not open closes the others.
func TestGroupHalfBuilt(t *testing.T) {
	for bad := range 3 {
		for _, panics := range []bool{false, true} {
			ranks := make([]*fakeRank, 3)
			_, err := NewGroup([]string{"a", "b", "c"}, NewBarrier(3), func(s Shard) (Rank, error) {
				if s.Rank == bad && panics {
					panic(errBoom)
				} else if s.Rank == bad {
					return nil, errBoom
				}
				ranks[s.Rank] = &fakeRank{Shard: s, fails: map[string]error{}}
				return ranks[s.Rank], nil
			})
			require.ErrorIs(t, err, errBoom)
			require.ErrorContains(t, err, fmt.Sprintf("rank %d (%c): ", bad, 'a'+bad))
			for i, r := range ranks {
				if i != bad {
					require.Equal(t, []string{"Close"}, r.take())
				}
			}
		}
	}
}

// TestGroupCannotSleep when one of its ranks cannot.
func TestGroupCannotSleep(t *testing.T) {
	g, err := NewGroup([]string{"a", "b"}, NewBarrier(2), func(s Shard) (Rank, error) {
		r := &fakeRank{Shard: s}
		if s.Rank == 1 {
			return struct{ Rank }{r}, nil
		}
		return r, nil
	})
	require.NoError(t, err)
	_, sleeps := g.(Sleeper)
	_, copies := g.(KVCopier)
	require.False(t, sleeps || copies)
}

func TestGroupCopiesKV(t *testing.T) {
	g, ranks, _ := fakeGroup(t, 2)
	c := g.(KVCopier)
	b := make([]byte, 4)
	require.NoError(t, c.ReadKV(9, b))
	require.Equal(t, []byte{0, 9, 1, 9}, b, "rank after rank")
	require.NoError(t, c.WriteKV(9, []byte{1, 2, 3, 4}))
	require.Equal(t, []string{"ReadKV", "WriteKV [3 4]"}, ranks[1].take())
	require.ErrorContains(t, c.ReadKV(9, b[:2]), "KV block 9 to or from 2 bytes: 2 ranks have 2 bytes each")
	ranks[1].fails["ReadKV"] = errBoom
	require.EqualError(t, c.ReadKV(9, b), "rank 1 (fake:1): boom")
}

// TestGroupNamesWhoHangs: who is late, not who waits.
func TestGroupNamesWhoHangs(t *testing.T) {
	g, ranks, m := fakeGroup(t, 3)
	late := make(chan struct{})
	ranks[1].step = func() error { <-late; return m.Wait(1) }
	busy := g.(interface{ Busy() []string }).Busy
	require.Empty(t, busy())
	done := make(chan error)
	go func() { _, err := g.Execute(&Batch{}); done <- err }()
	require.Eventually(t, func() bool {
		return m.Waiting(0) && m.Waiting(2) && len(busy()) == 1
	}, time.Minute, time.Millisecond)
	require.Equal(t, []string{"rank 1 (fake:1)"}, busy())
	close(late)
	require.NoError(t, <-done)
	require.Empty(t, busy())
}

// threadedRank has a thread, as far as OnThread can tell.
type threadedRank struct {
	*fakeRank
	on bool
}

func (r *threadedRank) OnThread(f func() error) error {
	r.on = true
	defer func() { r.on = false }()
	return f()
}

// A group's thread is that of its first rank.
func TestGroupOnThread(t *testing.T) {
	r, ranks, _ := fakeGroup(t, 2)
	planted, ran := errors.New("planted"), 0
	f := func() error { ran++; return planted }
	require.ErrorIs(t, OnThread(r, f), planted, "no rank has a thread")

	g := r.(*sleepingGroup)
	first, second := &threadedRank{fakeRank: ranks[0]}, &threadedRank{fakeRank: ranks[1]}
	g.ranks[0], g.ranks[1] = first, second
	require.ErrorIs(t, OnThread(r, func() error {
		require.True(t, first.on)
		require.False(t, second.on, "its part of a step is done by another goroutine, which has to get at the thread")
		return f()
	}), planted)
	require.Equal(t, 2, ran)
	require.False(t, first.on)
}
