package engine

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/enginetest/enginetest/engine/internal/cpu"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/offload"
	"github.com/enginetest/enginetest/ledger"
)

// makeTier returns the prefix cache its second tier, when Config.OffloadBytes asks for one.
func (c *core) makeTier() error {
	if c.cfg.OffloadBytes == 0 {
		return nil
	}
	device, ok := c.runner.(modelrunner.KVCopier)
	if !ok {
		return paramError("OffloadBytes", c.cfg.OffloadBytes,
			fmt.Sprintf("0 on device %s, whose KV blocks cannot be copied", c.cfg.Device))
	}
	c.enter("allocation of host memory for KV blocks")
	if c.connect == nil {
		c.connect = c.hostMemory
	}
	conn, err := c.connect(c.hostBlock())
	if err != nil {
		return err
	}
	o := c.tierOptions
	wake := c.wake
	o.Notify = func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	c.tier = offload.NewTier(conn, c.cache, device, o)
	c.sched.UseTier(c.tier)
	return nil
}

// hostBlock is the size of a KV block in host memory: what all devices have of it.
func (c *core) hostBlock() int64 {
	return c.runner.KVBytesPerBlock() * int64(max(c.cfg.TensorParallel, 1))
}

// hostMemory is the connector that Config.OffloadBytes means.
func (c *core) hostMemory(bytesPerBlock int64) (offload.Connector, error) {
	want := c.cfg.OffloadBytes
	if want < bytesPerBlock {
		return nil, paramError("OffloadBytes", want, fmt.Sprintf("at least %d, one KV block", bytesPerBlock))
	}
	alloc := cpu.NewAllocator(cpu.AllocatorConfig{Device: "host", Ledger: c.ledger, Before: c.faults.hooks(0).Allocate})
	if free, total, err := alloc.Memory(); err == nil && want > free {
		return nil, fmt.Errorf("%w: OffloadBytes is %s, and %s of %s of host memory are free", ErrOutOfMemory,
			ledger.FormatBytes(want), ledger.FormatBytes(free), ledger.FormatBytes(total))
	}
	return offload.NewHost(alloc, want, bytesPerBlock)
}

// forget empties the prefix cache, both tiers of it. Transfers under way are given up and waited
// for, so that it works in an idle engine too.
func (c *core) forget(ctx context.Context) error {
	if c.tier != nil && c.sched.Running()+c.sched.Fetching() == 0 {
		if err := c.tier.Reset(ctx); err != nil {
			return fmt.Errorf("engine: prefix cache not reset: %w", err)
		}
	}
	if err := c.cache.Reset(); err != nil {
		return fmt.Errorf("%w: %w", ErrBlocksInUse, err)
	}
	return nil
}

// countOffload takes the tier's counters.
func (c *core) countOffload() {
	if c.tier == nil {
		return
	}
	s := c.tier.Stats()
	c.counts.OffloadBlocks, c.counts.OffloadBytes = s.Capacity, int64(s.Blocks)*c.hostBlock()
	c.counts.OffloadBlocksUsed, c.counts.OffloadPending = s.Blocks, s.Pending
	c.counts.OffloadStores, c.counts.OffloadHits = s.Stored, s.Loaded*c.cfg.BlockSize
	c.counts.OffloadErrors = s.Lost + s.Failed
	if err := c.tier.Err(); err != nil && !c.tierReported {
		c.log.Warn("KV offload is out of use", "error", err)
	} else if err == nil {
		c.tierReported = false
	}
	c.tierReported = c.tier.Err() != nil
}

// closeTier ends the transfers and releases the host memory.
func (c *core) closeTier() (err error) {
	if c.tier == nil {
		return nil
	}
	c.enter("end of the KV transfers")
	defer func() {
		if v := recover(); v != nil {
			err = panicError("end of the KV transfers", v, debug.Stack())
		}
		if err != nil {
			err = fmt.Errorf("engine: shutdown: %w", err)
		}
	}()
	return c.tier.Close(context.Background()) // which has a limit of its own
}
