package offload

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/enginetest/enginetest/engine/internal/kvcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// faulty is a connector whose transfers can fail, hang or take their time, and go on all the same.
type faulty struct {
	Connector
	store, load func(ctx context.Context) error // before the transfer; nil: goes well
}

func (f *faulty) Store(ctx context.Context, k Key, read func([]byte) error) error {
	if f.store != nil {
		if err := f.store(ctx); err != nil {
			return err
		}
	}
	return f.Connector.Store(context.WithoutCancel(ctx), k, read)
}

func (f *faulty) Load(ctx context.Context, k Key, write func([]byte) error) error {
	if f.load != nil {
		if err := f.load(ctx); err != nil {
			return err
		}
	}
	return f.Connector.Load(context.WithoutCancel(ctx), k, write)
}

// device is blocks of memory, one byte value each.
type device struct {
	mu     sync.Mutex
	blocks [16]byte
	reads  int
	writes int
}

func (d *device) ReadKV(b int32, dst []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reads++
	for i := range dst {
		dst[i] = d.blocks[b]
	}
	return nil
}

func (d *device) WriteKV(b int32, src []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.writes++
	d.blocks[b] = src[len(src)-1]
	return nil
}

// rig is a tier with 16 blocks of one token on the device, and room for 8 on the host.
type rig struct {
	*Tier
	t      *testing.T
	cache  *kvcache.Cache
	device *device
	conn   *faulty
	notify chan struct{}
}

func newRig(t *testing.T, timeout time.Duration) *rig {
	h, l := newHost(t, 8)
	r := &rig{
		t: t, cache: kvcache.New(16, 1, true), device: &device{}, conn: &faulty{Connector: h},
		notify: make(chan struct{}, 1),
	}
	r.Tier = NewTier(r.conn, r.cache, r.device, Options{Timeout: timeout, Notify: func() {
		select {
		case r.notify <- struct{}{}:
		default:
		}
	}})
	t.Cleanup(func() {
		r.Finish()
		require.NoError(t, r.Close(context.Background()))
		assert.Empty(t, l.Holdings())
	})
	return r
}

// compute makes a sequence of n tokens, offers its blocks and frees it. It gives the keys and where
// the blocks lie.
func (r *rig) compute(n int) ([]Key, []int32) {
	const first = 10
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(first + i)
	}
	var tab kvcache.Table
	_, ok := r.cache.Admit(&tab, tokens, n, true)
	require.True(r.t, ok)
	keys, blocks := r.cache.Commit(&tab, tokens, n)
	keys, blocks = append([]Key(nil), keys...), append([]int32(nil), blocks...)
	for i, b := range blocks {
		r.device.blocks[b] = byte(first + i)
	}
	r.Store(keys, blocks)
	r.cache.Free(&tab)
	return keys, blocks
}

// until settles until it is so.
func (r *rig) until(what func() bool) {
	r.t.Helper()
	deadline := time.After(time.Minute)
	for r.Finish(); !what(); r.Finish() {
		select {
		case <-r.notify:
		case <-time.After(time.Millisecond):
		case <-deadline:
			require.Fail(r.t, "it never was so")
		}
	}
}

func (r *rig) stored() { r.t.Helper(); r.until(func() bool { return r.Stats().Pending == 0 }) }

func TestStoreAndLoad(t *testing.T) {
	r := newRig(t, 0)
	keys, blocks := r.compute(4)
	r.stored()
	assert.Equal(t, Stats{Blocks: 4, Capacity: 8, Stored: 4}, r.Stats())
	assert.Zero(t, r.cache.Stats().Used, "nothing is held any more")
	r.Store(keys, blocks)
	assert.Equal(t, 4, r.Stats().Stored+r.Stats().Pending, "what is kept is not stored again")

	assert.Equal(t, 4, r.Match(keys))
	assert.Equal(t, 2, r.Match([]Key{keys[0], keys[1], key(99), keys[2]}))
	clear(r.device.blocks[:])
	got := -1
	r.Load(keys[1:], []int32{7, 9, 8}, func(n int) { got = n })
	r.until(func() bool { return got >= 0 })
	assert.Equal(t, 3, got)
	assert.Equal(t, []byte{11, 12, 13}, []byte{r.device.blocks[7], r.device.blocks[9], r.device.blocks[8]})
	assert.Equal(t, Stats{Blocks: 4, Capacity: 8, Stored: 4, Loaded: 3}, r.Stats())

	require.NoError(t, r.Reset(t.Context()))
	assert.Zero(t, r.Match(keys))
}

// A block on its way is stored once, and held until it is done.
func TestInFlight(t *testing.T) {
	r := newRig(t, 0)
	begun, finish := make(chan struct{}, 8), make(chan struct{})
	r.conn.store = func(context.Context) error { begun <- struct{}{}; <-finish; return nil }
	keys, blocks := r.compute(3)
	<-begun
	assert.Equal(t, 3, r.cache.Stats().Used)
	var inUse *kvcache.InUseError
	require.ErrorAs(t, r.cache.Reset(), &inUse)
	r.Store(keys, blocks)
	assert.Equal(t, 3, r.Stats().Pending)
	assert.Zero(t, r.Match(keys))
	close(finish)
	r.stored()
	assert.Equal(t, 3, r.Stats().Stored)
	assert.Zero(t, r.cache.Stats().Used)
}

func TestStoreFails(t *testing.T) {
	for name, fault := range map[string]func(context.Context) error{
		"error": func(context.Context) error { return errors.New("boom") },
		"panic": func(context.Context) error { panic("boom") },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 0)
			r.conn.store = fault
			keys, _ := r.compute(3)
			r.stored()
			assert.Equal(t, Stats{Capacity: 8, Lost: 3}, r.Stats())
			assert.Zero(t, r.cache.Stats().Used)
			assert.Zero(t, r.Match(keys))
			assert.NoError(t, r.Err(), "a failure is no reason to stop")
			r.conn.store = nil
			require.NoError(t, r.cache.Reset())
			r.compute(3)
			r.stored()
			assert.Equal(t, 3, r.Match(keys))
		})
	}
}

// failing is a connector that fails to load one block.
type failing struct {
	Connector
	key   Key
	fault func(context.Context) error
}

func (f failing) Load(ctx context.Context, key Key, write func([]byte) error) error {
	if key == f.key {
		return f.fault(ctx)
	}
	return f.Connector.Load(ctx, key, write)
}

func TestLoadFails(t *testing.T) {
	for name, fault := range map[string]func(context.Context) error{
		"error": func(context.Context) error { return errors.New("boom") },
		"panic": func(context.Context) error { panic("boom") },
		"block gone": func(context.Context) error {
			return ErrGone
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 0)
			keys, _ := r.compute(4)
			r.stored()
			r.Tier.conn = failing{r.conn, keys[2], fault}
			got := -1
			r.Load(keys, []int32{4, 5, 6, 7}, func(n int) { got = n })
			r.until(func() bool { return got >= 0 })
			assert.Equal(t, 2, got, "those before the failure came")
			assert.Equal(t, []byte{10, 11}, r.device.blocks[4:6])
			assert.Equal(t, 1, r.Stats().Failed)
			assert.NoError(t, r.Err())
		})
	}
}

// A connector that says it loaded a block and gave none is a failed load, not a block of rubbish.
type empty struct{ Connector }

func (empty) Load(context.Context, Key, func([]byte) error) error { return nil }

func TestLoadGivesNothing(t *testing.T) {
	r := newRig(t, 0)
	keys, _ := r.compute(2)
	r.stored()
	r.Tier.conn = empty{r.conn}
	got := -1
	r.Load(keys, []int32{4, 5}, func(n int) { got = n })
	r.until(func() bool { return got >= 0 })
	assert.Zero(t, got)
}

// hang waits: for its context when it is well-behaved, else for the test.
func hang(wellBehaved bool, release <-chan struct{}) func(context.Context) error {
	return func(ctx context.Context) error {
		if wellBehaved {
			<-ctx.Done()
			return ctx.Err()
		}
		<-release
		return nil
	}
}

// A transfer that hangs takes the tier out of use after the timeout. From then on it touches no
// device memory, even when it goes on.
func TestHang(t *testing.T) {
	for _, wellBehaved := range []bool{true, false} {
		for _, store := range []bool{true, false} {
			t.Run(map[bool]string{true: "store", false: "load"}[store]+map[bool]string{
				true:  ", ends with its context",
				false: ", deaf",
			}[wellBehaved], func(t *testing.T) {
				r := newRig(t, 20*time.Millisecond)
				release := make(chan struct{})
				if store {
					r.conn.store = hang(wellBehaved, release)
					r.compute(3)
				} else {
					r.options.Timeout = time.Minute // a busy machine's
					keys, _ := r.compute(3)
					r.stored()
					r.options.Timeout = 20 * time.Millisecond
					r.conn.load = hang(wellBehaved, release)
					got := -1
					r.Load(keys, []int32{4, 5, 6}, func(n int) { got = n })
					defer func() { assert.Zero(t, got, "the load was given up") }()
				}
				r.until(func() bool { return r.Err() != nil && r.cache.Stats().Used == 0 })
				assert.Regexp(t, `^offload: out of use: (store of block [0-9a-f]{8}|load of 3 blocks from [0-9a-f]{8}) took longer than 20ms$`, r.Err().Error())
				assert.Zero(t, r.Match([]Key{key(1)}))
				if !wellBehaved {
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
					err := r.Reset(ctx)
					cancel()
					var busy *BusyError
					require.ErrorAs(t, err, &busy)
					assert.ErrorIs(t, err, context.DeadlineExceeded)
					assert.Regexp(t, `^offload: not idle after [\d.]+m?s, transfers under way: [1-4]: (store|load) of .* for [\d.]+m?s: context deadline exceeded$`, err.Error())
					assert.Error(t, r.Err())
				}
				r.device.mu.Lock()
				before := r.device.reads + r.device.writes
				r.device.mu.Unlock()
				close(release)
				r.until(func() bool { return r.Stats().Pending == 0 })
				assert.Equal(t, before, r.device.reads+r.device.writes,
					"a transfer that was given up touched the device")
				require.NoError(t, r.Reset(t.Context()))
				assert.NoError(t, r.Err(), "it is back in use")
				r.conn.store, r.conn.load = nil, nil
				require.NoError(t, r.cache.Reset())
				keys, _ := r.compute(3)
				r.stored()
				assert.Equal(t, 3, r.Match(keys))
			})
		}
	}
}

// Close of a connector that hangs ends after the timeout, says so, and closes nothing.
func TestCloseOfAHang(t *testing.T) {
	r := newRig(t, 20*time.Millisecond)
	begun, release := make(chan struct{}), make(chan struct{})
	r.conn.store = func(context.Context) error { close(begun); <-release; return nil }
	r.compute(1)
	<-begun
	var busy *BusyError
	require.ErrorAs(t, r.Close(context.Background()), &busy)
	assert.GreaterOrEqual(t, busy.Waited, 20*time.Millisecond)
	close(release)
}

// CancelStore frees one block at a time, of the store that is furthest from its end.
func TestYield(t *testing.T) {
	r := newRig(t, 0)
	begun, finish := make(chan struct{}, 8), make(chan struct{})
	r.conn.store = func(context.Context) error { begun <- struct{}{}; <-finish; return nil }
	assert.False(t, r.CancelStore())
	keys, _ := r.compute(3)
	<-begun
	for left := 2; left >= 0; left-- {
		assert.True(t, r.CancelStore())
		assert.Equal(t, left, r.cache.Stats().Used)
	}
	assert.False(t, r.CancelStore())
	close(finish)
	r.until(func() bool { return r.Stats().Pending == 0 })
	assert.Equal(t, Stats{Capacity: 8, Lost: 3}, r.Stats())
	assert.Zero(t, r.Match(keys))
	assert.Zero(t, r.device.reads)
}

// A load that is given up calls no one, and its blocks can be given back at once.
func TestLoadGivenUp(t *testing.T) {
	r := newRig(t, 0)
	keys, _ := r.compute(3)
	r.stored()
	begun, finish := make(chan struct{}, 8), make(chan struct{})
	r.conn.load = func(context.Context) error { begun <- struct{}{}; <-finish; return nil }
	giveUp := r.Load(keys, []int32{4, 5, 6}, func(int) { t.Error("done was called") })
	<-begun
	giveUp()
	close(finish)
	r.until(func() bool { return r.Stats().Pending == 0 })
	assert.Zero(t, r.device.writes)
	assert.Zero(t, r.Stats().Failed)
}

// Reset in the middle of stores: nothing of them appears later.
func TestResetGivesUpStores(t *testing.T) {
	r := newRig(t, 0)
	r.conn.store = hang(true, nil)
	keys, _ := r.compute(5)
	require.NoError(t, r.Reset(t.Context()))
	assert.Zero(t, r.cache.Stats().Used)
	require.NoError(t, r.cache.Reset())
	assert.Zero(t, r.Match(keys))
	assert.Equal(t, Stats{Capacity: 8, Lost: 5}, r.Stats())
}
