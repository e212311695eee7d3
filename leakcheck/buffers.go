package leakcheck

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/enginetest/enginetest/ledger"
)

// Freed waits until a ledger is empty, and returns nil; otherwise a [*Error] with one finding an owner: bytes, how they were obtained, and the
// places of the calls when the ledger records them. Any allocator can be checked that lists its live buffers as [ledger.Holding]s.
func Freed(ctx context.Context, rep ledger.Reporter, opts ...Option) error {
	cfg := configure(opts)
	start, wait := time.Now(), 100*time.Microsecond
	for {
		left := rep.Holdings()
		err := newError(byOwner(left), cfg.allow)
		if err == nil || time.Since(start) >= cfg.patience || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, 50*time.Millisecond)
	}
}

func byOwner(hs []ledger.Holding) []Finding {
	var order []string
	groups := map[string][]ledger.Holding{}
	for _, h := range hs {
		if groups[h.Owner] == nil {
			order = append(order, h.Owner)
		}
		groups[h.Owner] = append(groups[h.Owner], h)
	}
	var fs []Finding
	for _, owner := range order {
		g := groups[owner]
		var bytes int64
		for _, h := range g {
			bytes += h.Bytes
		}
		f := Finding{Kind: Buffer, Name: owner, Signature: "buffer: " + owner}
		f.Text = fmt.Sprintf("%s of device memory not given back by owner %s (%d allocations)", ledger.FormatBytes(bytes), owner, len(g))
		f.Detail = strings.ReplaceAll("\n"+ledger.Format(g[:min(len(g), 8)]), "\n    ", "\n")[1:]
		if len(g) > 8 {
			f.Detail += fmt.Sprintf("… %d more\n", len(g)-8)
		}
		if g[0].Stack == nil {
			f.Note = "the ledger does not record stacks: make it with ledger.New(true) to see who allocated"
		}
		fs = append(fs, f)
	}
	return fs
}
