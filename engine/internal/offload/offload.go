// Package offload is a second prefix cache, below the device's: full KV blocks are copied to a
// [Connector] as they are computed, and back when a prompt needs them and the device has lost them.
//
// A [Tier] does the copying beside the engine's steps. It never holds the engine up: a store that
// fails is a block less to be found, a load that fails is a block to be computed, and a transfer
// that hangs is given up after [Options].Timeout. A block that is being copied is held on the
// device; once a transfer is given up, it can touch no device memory any more, whatever its
// connector does. [Host] keeps blocks in host memory.
//
// What it says when something fails:
//
//	offload: not idle after 50ms, transfers under way: 1: store of block 9f86d081 for 12ms: context deadline exceeded
//	offload: out of use: load of 3 blocks from 9f86d081 took longer than 5s
package offload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/enginetest/enginetest/engine/internal/kvcache"
)

// Key names a block's contents.
type Key = kvcache.Hash

// Connector keeps blocks. Its methods are called from several goroutines; Store and Load may take
// their time, Has may not.
type Connector interface {
	// Store keeps a block under a key. read copies the block into the slice that it is given; when
	// it fails, nothing is to be kept.
	Store(ctx context.Context, key Key, read func(dst []byte) error) error
	// Load returns write a block's bytes, which stay as they are until it returns. An error when
	// the block is not there any more.
	Load(ctx context.Context, key Key, write func(src []byte) error) error
	// Has reports whether a block can be loaded now, and counts as a use of it.
	Has(key Key) bool
	// Reset forgets all blocks. No transfer is under way.
	Reset() error
	// Usage is the number of blocks kept, and of those that there is room for.
	Usage() (blocks, capacity int)
	// Close releases everything. No transfer is under way.
	Close() error
}

// Device is where the blocks come from: a modelrunner.KVCopier.
type Device interface {
	ReadKV(block int32, dst []byte) error
	WriteKV(block int32, src []byte) error
}

// Options of a [Tier].
type Options struct {
	Timeout time.Duration // of one transfer; 0 is 5 s
	Notify  func()        // called from any goroutine when Finish or Stats have something new
	// NoStores and NoLoads leave out one half of what a tier does.
	NoStores, NoLoads bool
}

// Stats are a tier's counters, since it was made.
type Stats struct {
	Blocks, Capacity int // kept now, and room
	Stored, Loaded   int // blocks
	Lost             int // stores that failed or were given up
	Failed           int // loads that gave less than they were to give
	Pending          int // transfers queued, under way, or not settled yet
}

// errGivenUp is what a transfer gets that is no longer wanted.
var errGivenUp = errors.New("offload: given up")

// LostError says that blocks were not stored.
type LostError struct {
	Lost, Of int
	Cause    error // of the first
}

func (e *LostError) Error() string {
	return fmt.Sprintf("offload: %d of %d blocks were not stored: %v", e.Lost, e.Of, e.Cause)
}

// Unwrap is the first's cause.
func (e *LostError) Unwrap() error { return e.Cause }

// BusyError says that a connector did not become idle.
type BusyError struct {
	Waited    time.Duration
	Transfers int           // that go on
	Oldest    string        // what it is
	Running   time.Duration // and for how long
	Cause     error         // of the end of the wait
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("offload: not idle after %s, transfers under way: %d: %s for %s: %v",
		e.Waited.Round(time.Millisecond), e.Transfers, e.Oldest, e.Running.Round(time.Millisecond), e.Cause)
}

// Unwrap is the context's error.
func (e *BusyError) Unwrap() error { return e.Cause }

// format prints the start of a key.
func format(k Key) string { return fmt.Sprintf("%x", k[:4]) }
