package engine

import (
	"bytes"
	"context"
	"sync"
	"testing"

	"github.com/enginetest/enginetest/engine/internal/offload"
	"github.com/enginetest/enginetest/leakcheck"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// inFlight is a table of transfers that outlives its engine, as connectors to other machines have
// one.
var inFlight struct {
	sync.Mutex
	blocks [][]byte
}

// registering is a connector that enters each block it stores in the table, and forgets to take it
// out when it is closed.
type registering struct{ offload.Connector }

func (r registering) Store(ctx context.Context, k offload.Key, read func([]byte) error) error {
	return r.Connector.Store(ctx, k, func(dst []byte) error {
		err := read(dst)
		inFlight.Lock()
		defer inFlight.Unlock()
		inFlight.blocks = append(inFlight.blocks, bytes.Clone(dst))
		return err
	})
}

// offloading is one life of an engine with a second tier of this size, through a connector of its
// own when there is one.
func offloading(t *testing.T, hostBytes int64, connect func(offload.Connector) offload.Connector) leakcheck.Arm {
	return func(_ int, stage func(string)) {
		cfg := Config{
			Model: tinyLlama, Device: "cpu", Logger: quiet, OffloadBytes: hostBytes,
			KVCacheBytes: 24 * 16 * 1024, MaxModelLen: 160,
		}
		e, err := open(t.Context(), cfg, func(c *core) (model, error) {
			if connect != nil {
				c.offload.connect = func(size int64) (offload.Connector, error) {
					host, err := c.offload.hostMemory(size)
					return connect(host), err
				}
			}
			return loadCheckpoint(c)
		})
		require.NoError(t, err)
		stage("created")
		for i := range 4 {
			one(t, e, ids(100, 7*i+1), SamplingParams{MaxTokens: 1})
			quietTransfers(t, e)
		}
		stage("used")
		require.NoError(t, e.Shutdown(t.Context()))
	}
}

// The control experiment for a connector's leak: KV offload leaves nothing more than an engine
// without it, and what a faulty connector keeps is found, although every life passes the engine's
// own checks.
func TestCompareOfKVOffload(t *testing.T) {
	if testing.Short() {
		t.Skip("44 lives of an engine")
	}
	const tier = 4 << 20
	c, err := leakcheck.MeasureDifference(t.Context(), 10, offloading(t, tier, nil), offloading(t, 0, nil))
	require.NoError(t, err)
	t.Logf("\n%s", c)
	for _, row := range c.Rows {
		if row.Stage == "used" && row.Measure == "memory outside the Go heap" {
			assert.Greater(t, row.More, 100e3, "the blocks that were copied are resident")
		}
	}

	defer func() { inFlight.blocks = nil }()
	leaky := offloading(t, tier, func(host offload.Connector) offload.Connector { return registering{host} })
	_, err = leakcheck.MeasureDifference(t.Context(), 10, leaky, offloading(t, tier, nil))
	require.ErrorContains(t, err, "Go heap: ")
	require.ErrorContains(t, err, "more is left with than without (10 rounds in turns; confidence 99.90 %")
	t.Log(err)
}
