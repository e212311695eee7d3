package offload

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/enginetest/enginetest/engine/internal/kvcache"
	"github.com/enginetest/enginetest/internal/alarm"
)

// parallel is how many stores, or blocks of one load, are under way at once: a device may take them
// together.
const parallel = 4

// Tier moves blocks between a device and a [Connector]. Its methods are for one goroutine, the
// engine's loop; the transfers run in others.
type Tier struct {
	conn    Connector
	cache   *kvcache.Cache
	device  Device
	options Options

	storing map[Key]*transfer // not settled
	stats   Stats

	mu       sync.Mutex
	queue    []*transfer   // stores to be done
	active   []*transfer   // under way, or hanging after they were given up
	settled  []*transfer   // to be taken notice of
	storers  int           // goroutines that store
	live     int           // goroutines
	idle     chan struct{} // closed when there is none; nil when no one waits for it
	outOfUse error
}

// NewTier makes a tier of a device's cache. It owns the connector from then on.
func NewTier(conn Connector, cache *kvcache.Cache, device Device, o Options) *Tier {
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second
	}
	if o.Notify == nil {
		o.Notify = func() {}
	}
	return &Tier{conn: conn, cache: cache, device: device, options: o, storing: map[Key]*transfer{}}
}

// Store stores blocks that have been computed, but those that are kept or on their way already.
func (t *Tier) Store(keys []Key, blocks []int32) {
	if t.options.NoStores {
		return
	}
	for i, key := range keys {
		if t.storing[key] != nil || t.conn.Has(key) {
			continue
		}
		x := &transfer{
			store: true, keys: []Key{key}, blocks: []int32{blocks[i]}, began: time.Now(),
			whole: make([]bool, 1), ended: make(chan struct{}),
		}
		if !t.enqueue(x) {
			return
		}
		t.storing[key] = x
		t.cache.Hold(blocks[i]) // no one else lets go of it but Finish
	}
}

// enqueue queues a store; false when the tier is out of use.
func (t *Tier) enqueue(x *transfer) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.outOfUse != nil {
		return false
	}
	t.queue = append(t.queue, x)
	if t.storers < parallel {
		t.storers++
		t.live++
		go t.runStores()
	}
	return true
}

// Match says how many of the blocks can be loaded, from the first on.
func (t *Tier) Match(keys []Key) int {
	if t.options.NoLoads || t.broken() != nil {
		return 0
	}
	for i, key := range keys {
		if !t.conn.Has(key) {
			return i
		}
	}
	return len(keys)
}

// Load copies blocks to the device. Finish calls done with the number of blocks that came, from the
// first on. The caller keeps the device's blocks until then, or until the returned function, which
// gives the load up, has returned: then done is not called.
func (t *Tier) Load(keys []Key, blocks []int32, done func(loaded int)) (giveUp func()) {
	ctx, cancel := context.WithCancel(context.Background())
	x := &transfer{
		keys: slices.Clone(keys), blocks: slices.Clone(blocks), done: done, began: time.Now(), stop: cancel,
		whole: make([]bool, len(keys)), ended: make(chan struct{}),
	}
	t.mu.Lock()
	t.active = append(t.active, x)
	t.live++
	t.mu.Unlock()
	go func() {
		t.run(ctx, x)
		t.mu.Lock()
		t.ended()
		t.mu.Unlock()
	}()
	return func() {
		x.giveUp()
		t.mu.Lock()
		x.end(errGivenUp)
		x.done = nil
		t.settled = slices.DeleteFunc(t.settled, func(s *transfer) bool { return s == x })
		t.mu.Unlock()
	}
}

// runStores is the goroutine that stores what is queued, and ends when nothing is.
func (t *Tier) runStores() {
	for {
		t.mu.Lock()
		if len(t.queue) == 0 || t.outOfUse != nil {
			t.storers--
			t.ended()
			t.mu.Unlock()
			return
		}
		x := t.queue[0]
		t.queue = t.queue[1:]
		ctx, cancel := context.WithCancel(context.Background())
		x.stop, x.began = cancel, time.Now()
		t.active = append(t.active, x)
		t.mu.Unlock()
		t.run(ctx, x)
	}
}

// run does one transfer.
func (t *Tier) run(ctx context.Context, x *transfer) {
	limit := alarm.After(t.options.Timeout, func() { t.late(x) })
	err := t.move(ctx, x)
	limit.Stop()
	x.stop()
	t.mu.Lock()
	t.active = slices.DeleteFunc(t.active, func(a *transfer) bool { return a == x })
	t.settle(x, err)
	t.mu.Unlock()
	t.options.Notify()
}

// ended counts a goroutine out; the caller holds the lock.
func (t *Tier) ended() {
	if t.live--; t.live == 0 && t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
}

// move does a transfer: the blocks of a load side by side, and none behind one that failed.
func (t *Tier) move(ctx context.Context, x *transfer) error {
	var wg sync.WaitGroup
	errs, next, end := make([]error, len(x.keys)), 0, len(x.keys) // guarded by t.mu
	take := func() (i int, ok bool) {
		t.mu.Lock()
		defer t.mu.Unlock()
		i, ok = next, next < end
		next++
		return i, ok
	}
	moved := func(i int, err error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if errs[i] = err; err != nil {
			end = min(end, i)
			return
		}
		for x.whole[i] = true; x.loaded < len(x.whole) && x.whole[x.loaded]; {
			x.loaded++
		}
	}
	for range min(parallel, len(x.keys)) {
		wg.Go(func() {
			for i, ok := take(); ok; i, ok = take() {
				moved(i, t.moveBlock(ctx, x, i))
			}
		})
	}
	wg.Wait()
	return cmp.Or(errs...)
}

// moveBlock calls the connector. A panic of its is an error.
func (t *Tier) moveBlock(ctx context.Context, x *transfer, i int) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("offload: panic in %s: %v", x, v)
		}
	}()
	whole := false
	copied := func(move func(int32, []byte) error) func([]byte) error {
		return func(b []byte) error {
			return x.touch(func() error {
				err := move(x.blocks[i], b)
				whole = err == nil
				return err
			})
		}
	}
	if x.store {
		return t.conn.Store(ctx, x.keys[i], copied(t.device.ReadKV))
	}
	if err := t.conn.Load(ctx, x.keys[i], copied(t.device.WriteKV)); err != nil {
		return err
	}
	if !whole {
		return fmt.Errorf("offload: %s: the connector gave no block", x)
	}
	return nil
}

// settle enters a transfer for Finish, once; the caller holds the lock.
func (t *Tier) settle(x *transfer, err error) {
	if x.end(err) {
		t.settled = append(t.settled, x)
	}
}

// late takes the tier out of use: its connector hangs, and every other transfer would wait for it
// in turn.
func (t *Tier) late(x *transfer) {
	t.mu.Lock()
	if !slices.Contains(t.active, x) {
		t.mu.Unlock()
		return
	}
	if t.outOfUse == nil {
		t.outOfUse = fmt.Errorf("offload: out of use: %s took longer than %s", x, t.options.Timeout)
	}
	all := append(slices.Clone(t.active), t.queue...)
	t.queue = nil
	t.mu.Unlock()
	t.giveUpAll(all)
	t.options.Notify()
}

// giveUpAll ends transfers, and enters them for Finish.
func (t *Tier) giveUpAll(all []*transfer) {
	for _, x := range all {
		x.giveUp()
		t.mu.Lock()
		t.settle(x, errGivenUp)
		t.mu.Unlock()
	}
}

func (t *Tier) broken() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.outOfUse
}

// Err is why the tier is out of use; nil while it works.
func (t *Tier) Err() error { return t.broken() }

// Finish takes notice of the transfers that have ended: blocks are let go, and the done of loads is
// called.
func (t *Tier) Finish() {
	t.mu.Lock()
	settled := t.settled
	t.settled = nil
	t.mu.Unlock()
	for _, x := range settled {
		if x.store {
			delete(t.storing, x.keys[0])
			t.cache.Release(x.blocks[0])
			if x.err != nil {
				t.stats.Lost++
			} else {
				t.stats.Stored++
			}
			continue
		}
		t.mu.Lock()
		loaded := x.loaded
		t.mu.Unlock()
		t.stats.Loaded += loaded
		if loaded < len(x.keys) {
			t.stats.Failed++
		}
		x.done(loaded)
	}
}

// CancelStore returns up one store, the last that was queued, so that its block can be had; false
// when no block is held.
func (t *Tier) CancelStore() bool {
	t.Finish()
	t.mu.Lock()
	var x *transfer
	if n := len(t.queue); n > 0 {
		x, t.queue = t.queue[n-1], t.queue[:n-1]
	} else if i := slices.IndexFunc(t.active, func(x *transfer) bool { return x.store && !x.over }); i >= 0 {
		x = t.active[i]
	}
	t.mu.Unlock()
	if x == nil {
		return false
	}
	t.giveUpAll([]*transfer{x})
	t.Finish()
	return true
}

// Stats returns the counters.
func (t *Tier) Stats() Stats {
	s := t.stats
	s.Blocks, s.Capacity = t.conn.Usage()
	t.mu.Lock()
	s.Pending = len(t.queue) + len(t.active) + len(t.settled)
	t.mu.Unlock()
	return s
}
