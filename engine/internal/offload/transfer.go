package offload

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// transfer is one store of one block, or one load of some.
type transfer struct {
	store  bool
	keys   []Key
	blocks []int32
	done   func(loaded int) // of a load
	began  time.Time
	over   bool          // is or was in Tier.settled, or no one wants it; guarded by Tier.mu
	ended  chan struct{} // closed when it is over
	err    error         // known then
	whole  []bool        // each block; guarded by Tier.mu, as loaded
	loaded int           // blocks, in a row from the first

	device  sync.RWMutex // read while device memory is touched
	givenUp bool
	stop    context.CancelFunc
}

func (x *transfer) String() string {
	if x.store {
		return "store of block " + format(x.keys[0])
	}
	return fmt.Sprintf("load of %d blocks from %s", len(x.keys), format(x.keys[0]))
}

// touch runs a copy from or to device memory, unless the transfer was given up.
func (x *transfer) touch(copied func() error) error {
	x.device.RLock()
	defer x.device.RUnlock()
	if x.givenUp {
		return errGivenUp
	}
	return copied()
}

// giveUp returns when the transfer cannot touch device memory any more: at the latest when the
// copies of the blocks under way end.
func (x *transfer) giveUp() {
	x.device.Lock()
	x.givenUp = true
	x.device.Unlock()
	if x.stop != nil {
		x.stop()
	}
}

// end notes that a transfer is over, once; the caller holds the tier's lock.
func (x *transfer) end(err error) bool {
	if x.over {
		return false
	}
	x.over, x.err = true, err
	close(x.ended)
	return true
}
