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

// kvOffload is the second tier of the prefix cache, in host memory: its own, or what it shares with
// other engines.
type kvOffload struct {
	ctx    context.Context
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

// open adds the second tier of the prefix cache when Config.OffloadBytes or Config.Connector asks
// for one.
func (k *kvOffload) open(l *stepLoop) error {
	shared := k.cfg.Connector.Path != ""
	if k.cfg.OffloadBytes == 0 && !shared {
		return nil
	}
	device, ok := l.runner.(modelrunner.KVCopier)
	if !ok && shared {
		return k.cfg.Connector.unsupported(k.cfg.Device)
	}
	if !ok {
		return paramError("OffloadBytes", k.cfg.OffloadBytes,
			fmt.Sprintf("0 on device %s, whose KV blocks cannot be copied", k.cfg.Device))
	}
	k.phase.enter("allocation of host memory for KV blocks")
	if k.connect == nil {
		k.connect = k.hostMemory
		if shared {
			k.connect = k.segment
		}
	}
	k.block = l.runner.KVBytesPerBlock() * int64(max(k.cfg.TensorParallel, 1))
	conn, err := k.connect(k.block)
	if err != nil {
		return err
	}
	o := k.options
	o.Notify = l.box.notify
	o.NoStores, o.NoLoads = k.cfg.Connector.Role == consumer, k.cfg.Connector.Role == producer
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
	if s := k.tier.Stats(); k.cfg.Connector.Path != "" {
		k.countConnector(counts, s)
	} else {
		counts.OffloadBlocks, counts.OffloadBytes = s.Capacity, int64(s.Blocks)*k.block
		counts.OffloadBlocksUsed, counts.OffloadPending = s.Blocks, s.Pending
		counts.OffloadStores, counts.OffloadHits = s.Stored, s.Loaded*k.cfg.BlockSize
		counts.OffloadErrors = s.Lost + s.Failed
	}
	if err := k.tier.Err(); err != nil && !k.reported {
		k.warn(err)
	} else if err == nil {
		k.reported = false
	}
	k.reported = k.tier.Err() != nil
}

// warn says that the tier is out of use.
func (k *kvOffload) warn(err error) { k.log.Warn(k.name()+" is out of use", "error", err) }

// name is what the tier is.
func (k *kvOffload) name() string {
	if k.cfg.Connector.Path != "" {
		return "KV connector"
	}
	return "KV offload"
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
