package engine

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/enginetest/enginetest/engine/internal/connector"
	"github.com/enginetest/enginetest/engine/internal/offload"
	"github.com/enginetest/enginetest/leakcheck"
	"github.com/enginetest/enginetest/ledger"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// decoding is one life of an engine that prefills and one that decodes, with a connector between
// them or without; the consumer's is made by connect when that is set.
func decoding(t *testing.T, shared bool, connect func(*kvOffload, int64) (offload.Connector, error)) leakcheck.Arm {
	dir, life := t.TempDir(), new(atomic.Int64)
	return func(_ int, stage func(string)) {
		path := filepath.Join(dir, fmt.Sprint(life.Add(1))) // a file that a faulty engine left is not this life's
		open := func(role string) *Engine {
			cfg := sharing(path, role)
			if !shared {
				cfg.Connector = Connector{}
			}
			e, err := open(t.Context(), cfg, func(c *core) (model, error) {
				if connect != nil && role == consumer {
					c.offload.connect = func(size int64) (offload.Connector, error) { return connect(c.offload, size) }
				}
				return loadCheckpoint(c)
			})
			require.NoError(t, err)
			return e
		}
		p, c := open(producer), open(consumer)
		stage("created")
		for i := range 4 {
			prefill(t, p, ids(100, 7*i+1))
			one(t, c, ids(100, 7*i+1), SamplingParams{MaxTokens: 2})
		}
		if s := c.Stats(); shared {
			assert.Equal(t, 4*96, s.ConnectorHits)
		}
		stage("used")
		require.NoError(t, p.Shutdown(t.Context()))
		require.NoError(t, c.Shutdown(t.Context()))
	}
}

// unclosed is a connector that does not let go of its segment.
type unclosed struct{ offload.Connector }

func (unclosed) Close() error { return nil }

// The control experiment of vLLM's issue 38503: two engines leave nothing more with a connector
// between them than without, and one that keeps its registered memory is found, although each life
// passes the engine's own checks: the ledger knows nothing of that memory.
func TestCompareOfKVConnector(t *testing.T) {
	if testing.Short() {
		t.Skip("88 lives of an engine")
	}
	c, err := leakcheck.MeasureDifference(t.Context(), 10, decoding(t, true, nil), decoding(t, false, nil))
	require.NoError(t, err)
	t.Logf("\n%s", c)
	for _, row := range c.Rows {
		if row.Stage == "used" && row.Measure == "memory outside the Go heap" {
			assert.Greater(t, row.More, 100e3, "the blocks that were shared are resident")
		}
	}

	var kept []*connector.Segment
	defer func() {
		for _, s := range kept {
			assert.NoError(t, s.Close())
		}
	}()
	leaky := decoding(t, true, func(k *kvOffload, size int64) (offload.Connector, error) {
		model, err := k.identity()
		if err != nil {
			return nil, err
		}
		s, err := connector.Open(t.Context(), connector.Options{
			Path: k.cfg.Connector.Path, Bytes: k.cfg.Connector.Bytes, BlockBytes: size, Model: model, Ledger: ledger.New(false),
		})
		if err == nil {
			kept = append(kept, s)
		}
		return unclosed{s}, err
	})
	_, err = leakcheck.MeasureDifference(t.Context(), 10, leaky, decoding(t, true, nil))
	require.ErrorContains(t, err, "file descriptors: 1.0 more is left with than without (10 rounds in turns; confidence 99.90 %")
	t.Log(err)
}
