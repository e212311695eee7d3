package engine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/enginetest/enginetest/engine/internal/connector"
	"github.com/enginetest/enginetest/engine/internal/offload"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/llm"
)

// Connector shares computed KV blocks with other engines of the same model, in this process or in
// others, through a file that all of them map: one engine computes a prompt, another one goes on
// from there. What comes out is what one engine alone would say, bit for bit.
//
// Every full block is published under the hash of its tokens and all tokens before it. A waiting
// request whose prompt begins with published blocks has them loaded first, while other requests go
// on, and then only the rest is computed. Linux and the CPU only.
type Connector struct {
	// Path of the file; "" is no connector. In /dev/shm it is shared memory. The first engine that
	// opens it makes it, and the last one that closes it removes it.
	Path string
	// Role is "producer" (publishes blocks), "consumer" (loads them), or "both"; "" is both.
	Role string
	// Bytes is the room for blocks. All engines with the same Path must agree; 0 takes what there
	// is, and as much as this engine's KV cache when there is nothing yet.
	Bytes int64
}

// The roles of a Connector; the names are vLLM's without their "kv_".
const (
	producer = "producer"
	consumer = "consumer"
	bothWays = "both"
)

// resolve fills in defaults, and checks every field.
func (k Connector) resolve() (Connector, error) {
	if k == (Connector{}) {
		return k, nil
	}
	if k.Path == "" {
		return k, paramError("Connector.Path", `""`, "a file that the engines share")
	}
	k.Role = cmp.Or(k.Role, bothWays)
	if k.Role != producer && k.Role != consumer && k.Role != bothWays {
		return k, paramError("Connector.Role", fmt.Sprintf("%q", k.Role), `"producer", "consumer" or "both"`)
	}
	if k.Bytes < 0 {
		return k, paramError("Connector.Bytes", k.Bytes, "≥ 0")
	}
	if runtime.GOOS != "linux" {
		return k, &llm.UnsupportedError{
			Field: "Connector", Why: "it needs Linux's locks of open files", Advice: "leave Path empty on " + runtime.GOOS,
		}
	}
	path, err := filepath.Abs(k.Path) // a child core may stand elsewhere
	if err != nil {
		return k, fmt.Errorf("engine: Connector.Path: %w", err)
	}
	k.Path = path
	return k, nil
}

// checkConnector refuses what does not go with a connector.
func (c *Config) checkConnector() error {
	switch {
	case c.Connector.Path == "":
	case c.DisablePrefixCache:
		return paramError("Connector.Path", fmt.Sprintf("%q", c.Connector.Path), `"" with DisablePrefixCache: it shares prefixes`)
	case c.OffloadBytes > 0:
		return paramError("OffloadBytes", c.OffloadBytes, "0 with a Connector, which is the prefix cache's second tier itself")
	}
	return nil
}

// unsupported says why a device has no connector.
func (k Connector) unsupported(device string) error {
	return &llm.UnsupportedError{
		Field: "Connector", Why: fmt.Sprintf("device %s has none", device),
		Advice: `open the engine with Config.Device "cpu", or without Connector.Path`,
	}
}

// segment is the connector that Config.Connector means.
func (k *kvOffload) segment(bytesPerBlock int64) (offload.Connector, error) {
	want := k.cfg.Connector
	if want.Bytes > 0 && want.Bytes < bytesPerBlock {
		return nil, paramError("Connector.Bytes", want.Bytes, fmt.Sprintf("at least %d, one KV block", bytesPerBlock))
	}
	model, err := k.identity()
	if err != nil {
		return nil, err
	}
	s, err := connector.Open(k.ctx, connector.Options{
		Path: want.Path, Bytes: want.Bytes, Default: max(k.cfg.KVCacheBytes*int64(k.cfg.TensorParallel), bytesPerBlock),
		BlockBytes: bytesPerBlock, Model: model, Ledger: k.ledger, Before: k.faults.hooks(0).Allocate,
	})
	if e, ok := errors.AsType[*connector.MismatchError](err); ok {
		return nil, paramError("Connector.Path", fmt.Sprintf("%q", want.Path), "a KV segment of the same model and size: "+e.Why)
	}
	if errors.Is(err, syscall.ENOSPC) {
		err = fmt.Errorf("%w: %w", llm.ErrOutOfMemory, err)
	}
	if err != nil {
		return nil, err // not s: an interface that holds nil is not nil
	}
	return s, nil
}

// identity names what a block depends on besides its tokens: the models' weights and configuration,
// and how a block lies in memory.
func (k *kvOffload) identity() (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	fmt.Fprintf(h, "BlockSize %d TensorParallel %d", k.cfg.BlockSize, k.cfg.TensorParallel)
	models := []string{k.cfg.Model}
	if k.cfg.Speculative.Method == SpeculativeDraftModel {
		models = append(models, k.cfg.Speculative.Model)
	}
	for _, dir := range models {
		if err := hashModel(h, dir); err != nil {
			return sum, err
		}
	}
	h.Sum(sum[:0])
	return sum, nil
}

// hashModel reads all of a checkpoint that its KV blocks depend on. Sizes and times of the files
// would tell copies of one model apart, and not two models that were unpacked together.
func hashModel(h io.Writer, dir string) error {
	ckpt, err := checkpoint.Open(dir)
	if err != nil {
		return err
	}
	files := []string{filepath.Join(dir, "config.json")}
	for _, m := range ckpt.Mappings() {
		files = append(files, m.File)
	}
	if err := ckpt.Close(); err != nil {
		return err
	}
	for _, path := range files {
		f, err := os.Open(path)
		if err != nil {
			return fmt.Errorf("engine: %w", err)
		}
		n, err := io.Copy(h, f)
		_ = f.Close() // it was only read
		if err != nil {
			return fmt.Errorf("engine: %w", err)
		}
		fmt.Fprintf(h, "%d bytes", n)
	}
	return nil
}

// Flush writes what KV blocks are still to be copied, to host memory (Config.OffloadBytes) or to
// other engines (Config.Connector), and waits for the copies under way. What requests that were
// answered before the call have computed can be loaded afterwards. Without either it does nothing.
//
// Errors: what became of a copy that failed, a state's refusal, or the context's, with what is
// still under way; the copies go on then.
func (e *Engine) Flush(ctx context.Context) error {
	defer runtime.KeepAlive(e)
	if err := checkContext(ctx); err != nil {
		return err
	}
	return e.b.flush(ctx)
}

func (c *core) flush(ctx context.Context) error {
	wait := func(context.Context) error { return nil }
	err := c.loop.ask(ctx, "flush", c.refusal, func(context.Context) error {
		if c.offload.tier != nil {
			wait = c.offload.tier.Flush()
		}
		return nil
	})
	if err != nil {
		return err
	}
	waiting, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(c.ctx, cancel)()
	defer cancel()
	if err := wait(waiting); err != nil {
		if c.ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", llm.ErrStopped, err)
		}
		return fmt.Errorf("engine: flush: %w", err)
	}
	// The loop takes notice of what has ended, so that Stats have it.
	return c.loop.ask(ctx, "flush", c.refusal, func(context.Context) error {
		if c.offload.tier != nil {
			c.offload.tier.Finish()
		}
		return nil
	})
}

// countConnector takes the counters of a tier that is a connector.
func (k *kvOffload) countConnector(counts *Stats, s offload.Stats) {
	counts.ConnectorStores, counts.ConnectorLoads = s.Stored, s.Loaded
	counts.ConnectorHits, counts.ConnectorErrors = s.Loaded*k.cfg.BlockSize, s.Lost+s.Failed
	counts.ConnectorPending = s.Pending
}
