package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/enginetest/enginetest/engine/internal/offload"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// openSharing opens an engine whose transfers over a segment can fail, and may take for timeout.
func openSharing(t *testing.T, f *faulty, cfg Config, timeout time.Duration) *Engine {
	t.Helper()
	e, err := open(t.Context(), cfg, func(c *core) (model, error) {
		c.offload.options.Timeout = timeout
		c.offload.connect = func(size int64) (offload.Connector, error) {
			var err error
			f.Connector, err = c.offload.segment(size)
			return f, err
		}
		return loadCheckpoint(c)
	})
	require.NoError(t, err)
	return e
}

// hanging is a transfer that hangs until it is given up.
func hanging() (fault func(context.Context) error, hung <-chan struct{}) {
	in := make(chan struct{}, 1000)
	return func(ctx context.Context) error { in <- struct{}{}; <-ctx.Done(); return ctx.Err() }, in
}

// Whatever ends a transfer under way, in the engine that publishes and in the one that loads: it
// ends clean, nothing is held, and what is served afterwards is right.
func TestConnectorInFlight(t *testing.T) {
	want := generate(t, openTiny(t, Config{Device: "cpu", MaxModelLen: 160}), withLogprobs(prompt100)).Completions
	for _, c := range []struct {
		name  string
		end   func(t *testing.T, e *Engine) error
		asked error // of the request whose prefix is being loaded
	}{
		{"abort", func(_ *testing.T, e *Engine) error { e.Abort("it"); return nil }, nil},
		{"reset", func(t *testing.T, e *Engine) error {
			err := e.ResetPrefixCache(t.Context())
			if errors.Is(err, llm.ErrBlocksInUse) { // a load is for a request
				e.Abort("it")
				err = nil
			}
			return err
		}, nil},
		{"sleep", func(t *testing.T, e *Engine) error {
			return errors.Join(e.Sleep(t.Context(), 1), e.Wake(t.Context()))
		}, llm.ErrSleeping},
		{"shutdown", func(t *testing.T, e *Engine) error { return e.Shutdown(t.Context()) }, llm.ErrStopped},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := kvFile(t)
			fault, hung := hanging()
			f := &faulty{store: fault}
			p := openSharing(t, f, sharing(path, producer), time.Minute)
			shutdownAfter(t, p)
			healthy := openTiny(t, sharing(path, producer))
			generate(t, p, withLogprobs(prompt100))
			<-hung
			require.NoError(t, c.end(t, p))
			prefill(t, healthy, prompt100)

			fault, hung = hanging()
			g := &faulty{load: fault}
			d := openSharing(t, g, sharing(path, consumer), time.Minute)
			shutdownAfter(t, d)
			req := withLogprobs(prompt100)
			req.ID = "it"
			answer := make(chan error, 1)
			go func() {
				_, err := d.Generate(t.Context(), req)
				answer <- err
			}()
			<-hung
			one(t, d, ids(20, 5), SamplingParams{MaxTokens: 3}) // others go on
			require.NoError(t, c.end(t, d))
			assert.ErrorIs(t, <-answer, c.asked)
			if c.name == "shutdown" {
				assert.Empty(t, d.Holdings())
				return
			}
			for _, e := range []*Engine{p, d} {
				require.Eventually(t, func() bool {
					s := e.Stats()
					return c.name == "abort" && e == p || s.KVBlocksUsed+s.ConnectorPending == 0
				}, time.Minute, time.Millisecond, "%s", e.Config().Connector.Role)
			}
			assert.Equal(t, want, generate(t, healthy, withLogprobs(prompt100)).Completions)
			ended := openTiny(t, sharing(path, consumer))
			assert.Equal(t, want, generate(t, ended, withLogprobs(prompt100)).Completions)
			assert.Equal(t, 96, ended.Stats().ConnectorHits)
		})
	}
}

// A transfer that cannot be ended keeps the segment mapped, and the shutdown says whose it is.
func TestConnectorThatHangs(t *testing.T) {
	path := kvFile(t)
	store, hung, release := deaf()
	f := &faulty{store: store}
	e := openSharing(t, f, sharing(path, ""), 50*time.Millisecond)
	ask12(t, e)
	<-hung
	err := e.Shutdown(t.Context())
	var leak *LeakError
	require.ErrorAs(t, err, &leak)
	require.Len(t, leak.Holdings, 1)
	assert.Equal(t, "kv_connector", leak.Holdings[0].Owner)
	var busy *offload.BusyError
	require.ErrorAs(t, err, &busy)
	release()
	require.NoError(t, f.Close())
}

// Two engines that both publish and load, with a store that has far too little room: blocks are
// evicted while they are loaded, and no output changes.
func TestConnectorUnderEviction(t *testing.T) {
	path := kvFile(t)
	cfg := sharing(path, "both")
	cfg.Connector.Bytes = 9 * 16 * 1024
	alone := openTiny(t, Config{Device: "cpu", MaxModelLen: 160})
	want := make([]Output, 5)
	for i := range want {
		want[i] = generate(t, alone, withLogprobs(ids(90+i, 11*i)))
	}
	var clients sync.WaitGroup
	var engines []*Engine
	for range 2 {
		engines = append(engines, openTiny(t, cfg))
	}
	for n, e := range engines {
		clients.Go(func() {
			for i := range 40 {
				k := (i*(n+1) + n) % len(want) // together they need more blocks than the device has
				outs, err := e.Generate(t.Context(), withLogprobs(ids(90+k, 11*k)))
				if assert.NoError(t, err) {
					assert.Equal(t, want[k].Completions, outs[0].Completions, fmt.Sprint(n, i))
				}
			}
		})
	}
	clients.Wait()
	a, b := engines[0].Stats(), engines[1].Stats()
	t.Logf("stored %d + %d, loaded %d + %d, errors %d + %d", a.ConnectorStores, b.ConnectorStores, a.ConnectorLoads,
		b.ConnectorLoads, a.ConnectorErrors, b.ConnectorErrors)
	assert.Positive(t, a.ConnectorStores+b.ConnectorStores)
}
