package shutdown_test

import (
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures/fault"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// 11. Engines that share KV blocks: the mapped segment is an owner that must be gone, and its file
// goes with the last of them, also when one is killed. On the CPU, whatever GPUs there are.

// sharing returns the configurations of a producer and a consumer, and the file between them.
func sharing(t *testing.T, cfg engine.Config) (producer, consumer engine.Config, path string) {
	path = filepath.Join(t.TempDir(), "kv")
	producer, consumer = cfg, cfg
	producer.Connector = engine.Connector{Path: path, Role: "producer", Bytes: 4 << 20}
	consumer.Connector = engine.Connector{Path: path, Role: "consumer", Bytes: 4 << 20}
	return producer, consumer, path
}

// long is a request whose prompt has several full blocks, different for each i.
func long(i, tokens int) engine.Request {
	q := some(tokens)
	q.Prompt = strings.Repeat("The lighthouse keeper wrote. ", 8+i%4) + string(rune('a'+i%26))
	return q
}

func TestConnector(t *testing.T) {
	everywhere(t, "connector: prefill here, decode there", func(t *testing.T, cfg engine.Config) {
		alone, _ := start(t, cfg)
		want := alone.Generate(long(0, 20))[0].Completions
		require.NoError(t, alone.Stop().Err())
		first, second, path := sharing(t, cfg)
		d, c := start(t, second)
		r, p := start(t, first)
		assert.Positive(t, ledger.ByOwner(c.Holdings())["kv_connector"], "the segment has an owner")
		assert.True(t, cfg.Core == engine.ChildProcess || c.Parts()["kv connector"] != nil, "and is watched")
		r.Generate(long(0, 1))
		require.NoError(t, p.Flush(t.Context()))
		assert.Equal(t, want, d.Generate(long(0, 20))[0].Completions)
		assert.Positive(t, c.Stats().ConnectorHits)
		gone(t, r)
		require.NoError(t, c.Sleep(t.Context(), 2))
		require.NoError(t, c.Wake(t.Context()))
		assert.Equal(t, want, d.Generate(long(0, 20))[0].Completions)
		require.NoError(t, c.ResetPrefixCache(t.Context()))
		gone(t, d)
		require.NoFileExists(t, path)
	})
	everywhere(t, "connector: blocks and requests in flight", func(t *testing.T, cfg engine.Config) {
		first, second, path := sharing(t, cfg)
		d, c := start(t, second)
		r, p := start(t, first)
		var clients sync.WaitGroup
		for i := range 6 {
			e := []*engine.Engine{p, c}[i%2]
			clients.Go(func() {
				var err error
				for n := i / 2; err == nil; n++ {
					_, err = e.Generate(t.Context(), long(n, 3))
				}
				assert.ErrorIs(t, err, llm.ErrStopped)
			})
		}
		eventually(t, "blocks go from one to the other", func() bool {
			return p.Stats().ConnectorStores > 3 && c.Stats().Finished > 8
		})
		require.NoError(t, p.Shutdown(t.Context()))
		require.NoError(t, c.Shutdown(t.Context()))
		clients.Wait()
		gone(t, r)
		gone(t, d)
		require.NoFileExists(t, path)
	})
	inChildCores(t, "connector: the producer is killed", func(t *testing.T, cfg engine.Config) {
		first, second, path := sharing(t, cfg)
		first.Faults = on(cfg, fault.Kill(llm.FaultForward, 40))
		d, c := start(t, second)
		var want [4][]llm.Completion
		for i := range want {
			want[i] = d.Generate(long(i, 5))[0].Completions
		}
		require.NoError(t, c.ResetPrefixCache(t.Context()))
		r, p := start(t, first)
		r.Generate(long(0, 1))
		require.NoError(t, p.Flush(t.Context()))
		var err error
		for i := 0; err == nil; i++ {
			_, err = p.Generate(t.Context(), long(i, 1))
		}
		require.ErrorIs(t, err, llm.ErrEngineDead)
		fault.MustFire(t, p)
		for i := range want {
			assert.Equal(t, want[i], d.Generate(long(i, 5))[0].Completions)
		}
		assert.Positive(t, c.Stats().ConnectorHits, "what was published outlives its producer")
		gone(t, r)
		require.FileExists(t, path)
		gone(t, d)
		require.NoFileExists(t, path)
	})
	inChildCores(t, "connector: its only engine is killed", func(t *testing.T, cfg engine.Config) {
		cfg, _, path := sharing(t, cfg)
		cfg.Faults = on(cfg, fault.Kill(llm.FaultForward, 5))
		r, e := start(t, cfg)
		var err error
		for i := 0; err == nil; i++ {
			_, err = e.Generate(t.Context(), long(i, 1))
		}
		require.ErrorIs(t, err, llm.ErrEngineDead)
		require.FileExists(t, path, "no one was left to remove it")
		gone(t, r)
		require.NoFileExists(t, path)
	})
}
