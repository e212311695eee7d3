// Package signals notes SIGTERM and SIGINT from the first moment of a process: it depends on
// nothing of this module, so that its init runs before that of packages which read tables, probe
// the machine or load a library. Without it a signal in the first quarter of a second ends a
// process that was about to handle it.
package signals

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// early receives what comes before Context is called.
var early = make(chan os.Signal, 2)

func init() { signal.Notify(early, os.Interrupt, syscall.SIGTERM) }

// Context returns a context that ends with the first signal of this process, also with one that
// came before the call. Call it once; after stop signals have their usual effect.
func Context() (ctx context.Context, stop context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		select {
		case <-early:
			cancel()
		case <-over:
		}
	}()
	return ctx, func() {
		signal.Stop(early)
		close(over)
		cancel()
	}
}
