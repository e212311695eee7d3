package engine

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// logOf opens and shuts down an engine and returns what it logged.
func logOf(t *testing.T, cfg Config) string {
	t.Helper()
	var log bytes.Buffer
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	e, err := Open(t.Context(), cfg)
	require.NoError(t, err)
	require.NoError(t, e.Shutdown(t.Context()))
	return log.String()
}

func TestUnusedTensorsAreNamed(t *testing.T) {
	ckpt, err := checkpoint.Open(tinyLlama)
	require.NoError(t, err)
	defer ckpt.Close()
	var tensors []checkpoint.Tensor
	for _, name := range ckpt.Names() {
		w, err := ckpt.Tensor(name)
		require.NoError(t, err)
		tensors = append(tensors, w)
	}
	extra := func(name string) {
		tensors = append(tensors, checkpoint.Tensor{
			Name: name, DType: checkpoint.F32, Shape: []int{2},
			Data: make([]byte, 8),
		})
	}
	for i := range 6 {
		extra(fmt.Sprintf("model.layers.0.extra.%d", i))
	}
	extra("model.layers.0.self_attn.rotary_emb.inv_freq") // does no harm
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(tinyLlama)))
	require.NoError(t, os.Remove(filepath.Join(dir, "model.safetensors")))
	require.NoError(t, checkpoint.WriteSafetensors(filepath.Join(dir, "model.safetensors"), tensors, nil))

	const e = "model.layers.0.extra."
	want := fmt.Sprintf(`level=WARN msg="tensors of the checkpoint are not used" model=%s count=6 tensors="%s0, %s1, %s2, %s3, %s4, …"`, dir, e, e, e, e, e)
	for name, cfg := range map[string]Config{
		"in process": {}, "child": {Core: ChildProcess},
		"two devices": {TensorParallel: 2, Device: "cpu"},
	} {
		t.Run(name, func(t *testing.T) {
			if cfg.Core == ChildProcess && runtime.GOOS != "linux" {
				t.Skip("a child core needs Linux")
			}
			cfg.Model = dir
			assert.Contains(t, logOf(t, cfg), want)
		})
	}
}

// Every tensor of a model that transformers wrote has its place.
func TestNoUnusedTensors(t *testing.T) {
	models, err := filepath.Glob("internal/modelrunner/testdata/*/config.json")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(models), 6)
	for _, dir := range append(models, filepath.Join(fixtures.Bundled(), "config.json")) {
		dir = filepath.Dir(dir)
		assert.Empty(t, logOf(t, Config{Model: dir}), dir)
	}
}
