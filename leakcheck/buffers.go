package leakcheck

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/enginetest/enginetest/internal/backoff"
	"github.com/enginetest/enginetest/ledger"
)

// Freed waits until a ledger is empty, and returns nil; otherwise a [*Error] with one finding an
// owner: bytes, how they were obtained, and the places of the calls when the ledger records them.
// Any allocator can be checked that lists its live buffers as [ledger.Holding]s.
func Freed(ctx context.Context, rep ledger.Reporter, opts ...Option) error {
	cfg := configure(opts)
	watch, looks := startWatch(), backoff.New(100*time.Microsecond, 50*time.Millisecond)
	for {
		left := rep.Holdings()
		err := newError(byOwner(left), cfg.allow)
		if err == nil || watch.spent() >= cfg.patience || ctx.Err() != nil {
			return err
		}
		_ = looks.Wait(ctx) // the context is looked at above
	}
}

// watched is a reporter that is held weakly: it may be the engine that is watched.
type watched struct {
	get   func() ledger.Reporter // nil when it was collected
	books ledger.Reporter        // what it lists, without it; nil when it has no such method
	typ   string
}

func watch(rep ledger.Reporter) watched {
	w := watched{get: weakly(rep), typ: fmt.Sprintf("%T", rep)}
	if b, ok := rep.(interface{ Books() ledger.Reporter }); ok {
		w.books = b.Books()
	}
	return w
}

// freed is [Freed] of a reporter that may have been collected; known is false when no one can tell
// any more what it held.
func (w watched) freed(ctx context.Context, opts []Option) (err error, known bool) {
	if rep := w.get(); rep != nil {
		return Freed(ctx, rep, opts...), true
	}
	if w.books == nil {
		return nil, false
	}
	err = Freed(ctx, w.books, opts...)
	if e, ok := errors.AsType[*Error](err); ok {
		for i := range e.Findings {
			e.Findings[i].Text += ", whose ledger was collected: its owner dropped it, and no one can free them any more"
		}
	}
	return err, true
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
		f := Finding{Kind: KindBuffer, Name: owner, Signature: "buffer: " + owner}
		f.Text = fmt.Sprintf("%s of device memory not given back by owner %s (%d allocations)",
			ledger.FormatBytes(bytes), owner, len(g))
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
