package engine

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/enginetest/enginetest/engine/internal/cpu"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/offload"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
)

// kvOffload is the second tier of the prefix cache, in host memory.
type kvOffload struct {
	cfg    *Config
	log    *slog.Logger
	ledger *ledger.Ledger
	faults *faults
	phase  *phase

	tier     *offload.Tier // nil: none
	block    int64         // bytes of a KV block in host memory: what all devices have of it
	connect  func(bytesPerBlock int64) (offload.Connector, error)
	options  offload.Options
	reported bool // that it is out of use
}

// open adds the second tier of the prefix cache when Config.OffloadBytes asks for one.
func (k *kvOffload) open(l *stepLoop) error {
	if k.cfg.OffloadBytes == 0 {
		return nil
	}
	device, ok := l.runner.(modelrunner.KVCopier)
	if !ok {
		return paramError("OffloadBytes", k.cfg.OffloadBytes,
			fmt.Sprintf("0 on device %s, whose KV blocks cannot be copied", k.cfg.Device))
	}
	k.phase.enter("allocation of host memory for KV blocks")
	if k.connect == nil {
		k.connect = k.hostMemory
	}
	k.block = l.runner.KVBytesPerBlock() * int64(max(k.cfg.TensorParallel, 1))
	conn, err := k.connect(k.block)
	if err != nil {
		return err
	}
	o := k.options
	o.Notify = l.box.notify
	k.tier = offload.NewTier(conn, l.cache, device, o)
	l.sched.UseTier(k.tier)
	return nil
}

// hostMemory is the connector that Config.OffloadBytes means.
func (k *kvOffload) hostMemory(bytesPerBlock int64) (offload.Connector, error) {
	want := k.cfg.OffloadBytes
	if want < bytesPerBlock {
		return nil, paramError("OffloadBytes", want, fmt.Sprintf("at least %d, one KV block", bytesPerBlock))
	}
	alloc := cpu.NewAllocator(cpu.AllocatorConfig{Device: "host", Ledger: k.ledger, Before: k.faults.hooks(0).Allocate})
	if free, total, err := alloc.Memory(); err == nil && want > free {
		return nil, fmt.Errorf("%w: OffloadBytes is %s, and %s of %s of host memory are free", llm.ErrOutOfMemory,
			ledger.FormatBytes(want), ledger.FormatBytes(free), ledger.FormatBytes(total))
	}
	return offload.NewHost(alloc, want, bytesPerBlock)
}

// count takes the tier's counters.
func (k *kvOffload) count(counts *Stats) {
	if k.tier == nil {
		return
	}
	s := k.tier.Stats()
	counts.OffloadBlocks, counts.OffloadBytes = s.Capacity, int64(s.Blocks)*k.block
	counts.OffloadBlocksUsed, counts.OffloadPending = s.Blocks, s.Pending
	counts.OffloadStores, counts.OffloadHits = s.Stored, s.Loaded*k.cfg.BlockSize
	counts.OffloadErrors = s.Lost + s.Failed
	if err := k.tier.Err(); err != nil && !k.reported {
		k.log.Warn("KV offload is out of use", "error", err)
	} else if err == nil {
		k.reported = false
	}
	k.reported = k.tier.Err() != nil
}

// close ends the transfers and releases the host memory.
func (k *kvOffload) close() (err error) {
	if k.tier == nil {
		return nil
	}
	k.phase.enter("end of the KV transfers")
	defer func() {
		if v := recover(); v != nil {
			err = panicError("end of the KV transfers", v, debug.Stack())
		}
		if err != nil {
			err = fmt.Errorf("engine: shutdown: %w", err)
		}
	}()
	return k.tier.Close(context.Background()) // which has a limit of its own
}
