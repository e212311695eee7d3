package engine

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/enginetest/enginetest/engine/internal/connector"
	"github.com/enginetest/enginetest/internal/cudatest"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// kvFile is the path of a segment that no one has made yet. It is gone when the test ends, because
// the engines removed it.
func kvFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kv")
	t.Cleanup(func() { assert.NoFileExists(t, path, "the last engine removes it") })
	return path
}

// sharing is the configuration of an engine of the tiny Llama that shares its blocks.
func sharing(path, role string) Config {
	return Config{
		Model: tinyLlama, Device: "cpu", Logger: quiet, KVCacheBytes: 24 * 16 * 1024, MaxModelLen: 160,
		Connector: Connector{Path: path, Role: role, Bytes: 1 << 20},
	}
}

// withLogprobs is a request for 12 tokens of the prompt, sampled, with log-probabilities.
func withLogprobs(prompt []int32) Request {
	return Request{PromptTokenIDs: prompt, Sampling: SamplingParams{
		MaxTokens: 12, IgnoreEOS: true, Temperature: 0.8, Seed: ptr(int64(7)), Logprobs: ptr(5),
	}}
}

func generate(t *testing.T, e *Engine, req Request) Output {
	t.Helper()
	outs, err := e.Generate(t.Context(), req)
	require.NoError(t, err)
	return outs[0]
}

// prefill has an engine publish the blocks of a prompt.
func prefill(t *testing.T, e *Engine, prompt []int32) {
	t.Helper()
	one(t, e, prompt, SamplingParams{MaxTokens: 1})
	require.NoError(t, e.Flush(t.Context()))
}

// One engine prefills and another one decodes: the outputs are those of one engine alone, bit for
// bit, and only the rest of the prompt was computed.
func TestConnector(t *testing.T) {
	for _, core := range []Core{InProcess, ChildProcess} {
		for _, ranks := range []int{1, 2} {
			t.Run(core.String()+map[int]string{1: "", 2: " x2"}[ranks], func(t *testing.T) { testConnector(t, core, ranks) })
		}
	}
}

func testConnector(t *testing.T, core Core, ranks int) {
	path := kvFile(t)
	cfg := sharing(path, "producer")
	cfg.TensorParallel = ranks
	alone := cfg
	alone.Connector = Connector{}
	want := generate(t, openTiny(t, alone), withLogprobs(prompt100))

	p := openTiny(t, cfg)
	cfg.Core, cfg.Connector.Role = core, "consumer"
	c := openTiny(t, cfg)
	assert.Greater(t, ledger.ByOwner(c.Holdings())["kv_connector"], int64(1<<20), "the blocks, and a header")
	require.NoError(t, c.Flush(t.Context()), "of nothing")
	prefill(t, p, prompt100)
	s := p.Stats()
	assert.Equal(t, 6, s.ConnectorStores)
	assert.Zero(t, s.ConnectorLoads+s.ConnectorErrors+s.ConnectorPending)

	got := generate(t, c, withLogprobs(prompt100))
	assert.Equal(t, want.Completions, got.Completions)
	assert.Equal(t, 96, got.CachedTokens)
	s = c.Stats()
	assert.Equal(t, 6, s.ConnectorLoads)
	assert.Equal(t, 96, s.ConnectorHits)
	assert.Zero(t, s.ConnectorStores+s.ConnectorErrors, "a consumer publishes nothing")
	assert.Zero(t, s.OffloadStores+s.OffloadHits+s.OffloadBlocks)

	require.NoError(t, p.Shutdown(t.Context()))
	assert.Empty(t, p.Holdings())
	require.FileExists(t, path, "the consumer goes on without its producer")
	require.NoError(t, c.ResetPrefixCache(t.Context()))
	require.NoError(t, c.Shutdown(t.Context()))
}

// A block that was damaged in the file is noticed, and computed instead.
func TestConnectorDamage(t *testing.T) {
	path := kvFile(t)
	p, c := openTiny(t, sharing(path, "producer")), openTiny(t, sharing(path, "consumer"))
	prefill(t, p, prompt100)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	info, err := f.Stat()
	require.NoError(t, err)
	page := make([]byte, 64)
	for at := info.Size() - 1<<20; at < info.Size(); at += 4096 { // the blocks
		_, err := f.ReadAt(page, at)
		require.NoError(t, err)
		page[3] ^= 0x80 // the sign of a number
		_, err = f.WriteAt(page, at)
		require.NoError(t, err)
	}
	require.NoError(t, f.Close())
	got := generate(t, c, withLogprobs(prompt100))
	want := generate(t, openTiny(t, Config{Device: "cpu", MaxModelLen: 160}), withLogprobs(prompt100))
	assert.Equal(t, want.Completions, got.Completions)
	assert.Zero(t, got.CachedTokens)
	s := c.Stats()
	assert.Equal(t, 1, s.ConnectorErrors)
	assert.Zero(t, s.ConnectorLoads)
}

// A configuration that cannot share is refused before anything is left of it.
func TestConnectorRefusals(t *testing.T) {
	path := kvFile(t)
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.Connector.Path = "" }, `engine: Connector.Path is "", must be a file that the engines share`},
		{func(c *Config) { c.Connector.Role = "kv_both" }, `engine: Connector.Role is "kv_both", must be "producer", "consumer" or "both"`},
		{func(c *Config) { c.Connector.Bytes = -1 }, "engine: Connector.Bytes is -1, must be ≥ 0"},
		{func(c *Config) { c.Connector.Bytes = 5 }, "engine: Connector.Bytes is 5, must be at least 16384, one KV block"},
		{func(c *Config) { c.DisablePrefixCache = true }, `must be "" with DisablePrefixCache: it shares prefixes`},
		{func(c *Config) { c.OffloadBytes = 1 << 20 }, "engine: OffloadBytes is 1048576, must be 0 with a Connector"},
	} {
		cfg := sharing(path, "")
		c.change(&cfg)
		_, err := Open(t.Context(), cfg)
		var p *llm.ParamError
		require.ErrorAs(t, err, &p)
		assert.ErrorContains(t, err, c.want)
	}
	cfg := sharing(filepath.Join(path, "none"), "")
	_, err := Open(t.Context(), cfg)
	assert.ErrorIs(t, err, os.ErrNotExist)

	openTiny(t, sharing(path, ""))
	same, other := t.TempDir(), t.TempDir()
	for _, dir := range []string{same, other} {
		require.NoError(t, os.CopyFS(dir, os.DirFS(tinyLlama)))
	}
	weights := filepath.Join(other, "model.safetensors")
	b, err := os.ReadFile(weights)
	require.NoError(t, err)
	b[len(b)-1] ^= 1
	require.NoError(t, os.WriteFile(weights, b, 0o600))
	copied := sharing(path, "")
	copied.Model = same
	openTiny(t, copied)
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.BlockSize = 8 }, "its blocks have 16384 bytes, and those of this engine 8192"},
		{func(c *Config) { c.TensorParallel = 2 }, "its blocks are of another model: "},
		{func(c *Config) { c.Model = other }, "must be a KV segment of the same model and size: its blocks are of another"},
		{func(c *Config) { c.Connector.Bytes = 2 << 20 }, "it has room for 64 blocks, and not for 128"},
	} {
		for _, core := range []Core{InProcess, ChildProcess} {
			cfg := sharing(path, "")
			cfg.Core = core
			c.change(&cfg)
			_, err := Open(t.Context(), cfg)
			var p *llm.ParamError
			require.ErrorAs(t, err, &p)
			assert.Equal(t, "Connector.Path", p.Field)
			assert.ErrorContains(t, err, c.want)
		}
	}
}

// A GPU's blocks are not shared: the engine says so before it takes any memory.
func TestConnectorOnCUDA(t *testing.T) {
	t.Setenv("ENGINETEST_LIBCUDA", cudatest.New(t, 1, 1<<30).Path)
	cfg := sharing(kvFile(t), "")
	cfg.Device = "cuda"
	_, err := Open(t.Context(), cfg)
	var u *llm.UnsupportedError
	require.ErrorAs(t, err, &u)
	require.ErrorIs(t, err, llm.ErrUnsupported)
	assert.ErrorContains(t, err, "engine: Connector is not supported: device cuda has none; "+
		`open the engine with Config.Device "cpu", or without Connector.Path`)

	cfg.Device = "" // a choice of the engine's
	e := openTiny(t, cfg)
	assert.Equal(t, "cpu", e.Config().Device)
}

// A start that fails after the segment was mapped, or before, leaves neither memory nor file.
func TestConnectorStartFails(t *testing.T) {
	for after := range 8 {
		cfg := sharing(kvFile(t), "")
		cfg.Faults = []llm.Fault{{Point: llm.FaultAllocate, Action: llm.ActOOM, After: after}}
		e, err := Open(t.Context(), cfg)
		if err == nil {
			require.NoError(t, e.Shutdown(t.Context()))
			assert.Greater(t, after, 4, "weights, rope, workspace, KV cache, connector")
			continue
		}
		assert.ErrorIs(t, err, llm.ErrOutOfMemory)
	}
	cfg := sharing(kvFile(t), "")
	cfg.Faults = []llm.Fault{{Point: llm.FaultProfile, Action: llm.ActPanic}}
	_, err := Open(t.Context(), cfg)
	assert.ErrorIs(t, err, llm.ErrInjected)
}

// Flush without a second tier has nothing to do, and it is refused as any call is.
func TestFlush(t *testing.T) {
	e := openTiny(t, Config{Device: "cpu"})
	require.NoError(t, e.Flush(t.Context()))
	require.NoError(t, e.Sleep(t.Context(), 1))
	assert.ErrorIs(t, e.Flush(t.Context()), llm.ErrSleeping)
	require.NoError(t, e.Shutdown(t.Context()))
	assert.ErrorIs(t, e.Flush(t.Context()), llm.ErrStopped)
	assert.Error(t, e.Flush(nil)) //nolint:staticcheck // on purpose
}

// Flush waits for the copies under way, says which failed, and ends with its context or its engine.
func TestFlushWaits(t *testing.T) {
	let := make(chan error)
	store := func(ctx context.Context) error {
		select {
		case err := <-let:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	e := openFaulty(t, onCPU, &faulty{store: store}, Config{}, time.Minute)
	ask12(t, e)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	err := e.Flush(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, "engine: flush")

	flushed := make(chan error)
	flush := func() { flushed <- e.Flush(t.Context()) }
	go flush()
	one(t, e, ids(10, 3), SamplingParams{MaxTokens: 3}) // steps go on meanwhile
	for i := range 6 {
		let <- map[bool]error{true: connector.ErrFull}[i == 2]
	}
	// Those that ended before Flush looked are none of its business.
	if err := <-flushed; err != nil {
		assert.Regexp(t, `^engine: flush: offload: 1 of [1-6] blocks were not stored: connector: every place`, err.Error())
		assert.ErrorIs(t, err, connector.ErrFull)
	}
	require.NoError(t, e.Flush(t.Context()))
	s := e.Stats()
	assert.Equal(t, 5, s.OffloadStores)
	assert.Equal(t, 1, s.OffloadErrors)
	assert.Zero(t, s.OffloadPending)

	one(t, e, ids(40, 9), SamplingParams{MaxTokens: 1})
	go flush()
	require.NoError(t, e.Shutdown(t.Context()))
	assert.ErrorIs(t, <-flushed, llm.ErrStopped)
}
