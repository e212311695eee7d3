package checkpoint

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func f32(name string, shape ...int) Tensor {
	n := 4
	for _, d := range shape {
		n *= d
	}
	return Tensor{Name: name, DType: F32, Shape: shape, Data: make([]byte, n)}
}

// folder makes a checkpoint folder of files: text, or tensors for safetensors.
func folder(tb testing.TB, files map[string]any) string {
	tb.Helper()
	dir := tb.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		switch c := content.(type) {
		case string:
			require.NoError(tb, os.WriteFile(path, []byte(c), 0o600))
		case []Tensor:
			require.NoError(tb, WriteSafetensors(path, c, nil))
		}
	}
	return dir
}

var goodConfig = string(config(nil))

func TestOpen(t *testing.T) {
	dir := folder(t, map[string]any{
		"config.json": goodConfig, "generation_config.json": `{"eos_token_id": [7, 8], "temperature": 0.5}`, "tokenizer.json": "{}",
		"model.safetensors": []Tensor{
			f32("model.norm.weight", 64),
			{Name: "packed", DType: "I32", Shape: []int{1}, Data: make([]byte, 4)},
		},
	})
	c, err := Open(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"model.norm.weight", "packed"}, c.Names())
	require.Equal(t, []int32{7, 8}, c.EOS(), "generation_config.json has the last word")
	require.Equal(t, filepath.Join(dir, "tokenizer.json"), c.TokenizerPath())
	w, err := c.Weight("model.norm.weight", 64)
	require.NoError(t, err)
	require.Len(t, w.Data, 256)
	require.Len(t, c.Mappings(), 1)

	file := filepath.Join(dir, "model.safetensors")
	_, err = c.Weight("model.norm.weight", 8, 8)
	require.EqualError(t, err,
		`checkpoint: `+file+`: tensor "model.norm.weight": wrong shape: got F32 [64], want [8 8]`)
	_, err = c.Weight("packed", 1)
	require.EqualError(t, err,
		`checkpoint: `+file+`: tensor "packed": unsupported type: got I32, want F32, BF16 or F16`)
	_, err = c.Tensor("norm.weight")
	require.EqualError(t, err, `checkpoint: `+dir+`: tensor "norm.weight": missing: not among the 2 tensors of model.safetensors (there is "model.norm.weight")`)
	require.NoError(t, c.Close())
	require.NoError(t, c.Close(), "a second Close has nothing to do")
	require.Empty(t, c.Mappings())
}

func TestOpenWithoutTheOptionalFiles(t *testing.T) {
	c, err := Open(folder(t, map[string]any{"config.json": goodConfig, "model.safetensors": []Tensor{f32("a", 1)}}))
	require.NoError(t, err)
	require.Empty(t, c.TokenizerPath())
	require.Equal(t, []int32{2}, c.EOS(), "config.json's, here the class's default")
	require.NoError(t, c.Close())
}

// In a download cache every file is a link: one that leads nowhere is a broken checkpoint, not one
// without the file.
func TestLinksThatLeadNowhere(t *testing.T) {
	for _, name := range []string{"config.json", "generation_config.json", "model.safetensors"} {
		dir := folder(t, map[string]any{"config.json": goodConfig, "model.safetensors": []Tensor{f32("a", 1)}})
		_ = os.Remove(filepath.Join(dir, name))
		require.NoError(t, os.Symlink(filepath.Join(dir, "nowhere"), filepath.Join(dir, name)))
		_, err := Open(dir)
		require.ErrorIs(t, err, fs.ErrNotExist, name)
		require.ErrorContains(t, err, name)
	}
	dir := folder(t, map[string]any{"config.json": goodConfig, "model.safetensors": []Tensor{f32("a", 1)}})
	require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "tokenizer.json")))
	c, err := Open(dir)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "tokenizer.json"), c.TokenizerPath(), "its reader says what is wrong with it")
	require.NoError(t, c.Close())
}

func TestShards(t *testing.T) {
	one, two := []Tensor{f32("a", 1)}, []Tensor{f32("b", 2), f32("stray", 1)}
	for _, row := range []struct {
		why   string
		files map[string]any
		names []string
	}{
		{"with an index, what it lists", map[string]any{
			"model-00001-of-00002.safetensors": one, "model-00002-of-00002.safetensors": two,
			indexName: `{"metadata":{"total_size":12},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}`,
		}, []string{"a", "b"}},
		{"without an index, everything", map[string]any{
			"model-00001-of-00002.safetensors": one,
			"model-00002-of-00002.safetensors": two,
		}, []string{"a", "b", "stray"}},
		{"model.safetensors goes first", map[string]any{
			"model.safetensors": one,
			indexName:           `{"weight_map":{"b":"missing.safetensors"}}`,
		}, []string{"a"}},
	} {
		row.files["config.json"] = goodConfig
		c, err := Open(folder(t, row.files))
		require.NoError(t, err, row.why)
		require.Equal(t, row.names, c.Names(), row.why)
		if !c.Has("stray") && len(row.names) == 2 {
			_, err = c.Tensor("stray")
			require.EqualError(t, err, `checkpoint: `+c.Dir+`: tensor "stray": missing: model-00002-of-00002.safetensors has it, but model.safetensors.index.json does not list it`)
		}
		require.NoError(t, c.Close())
	}
}

func TestOpenRefusals(t *testing.T) {
	one := []Tensor{f32("a", 1)}
	index := func(file string) string { return fmt.Sprintf(`{"weight_map":{"a":%q}}`, file) }
	for _, row := range []struct {
		why   string
		files map[string]any
		says  string
	}{
		{"no weights", map[string]any{}, "no safetensors weights: got config.json, want model.safetensors"},
		{"a GGUF file", map[string]any{"m-q4.gguf": "GGUF"}, "no safetensors weights: got m-q4.gguf (GGUF), want"},
		{"PyTorch files", map[string]any{"pytorch_model.bin": "x"}, "pytorch_model.bin (PyTorch pickle)"},
		{
			"an adapter",
			map[string]any{"adapter_model.safetensors": one},
			"got adapter_model.safetensors (safetensors), want model.safetensors",
		},
		{
			"weights that are cut off",
			map[string]any{"model.safetensors": "\x10\x00\x00\x00\x00\x00\x00\x00{"},
			"truncated in its header",
		},
		{"a shard missing without index", map[string]any{"model-00001-of-00002.safetensors": one}, "a shard is missing, and so is model.safetensors.index.json: got model-00001-of-00002.safetensors (safetensors), want model-00002-of-00002.safetensors"},
		{
			"a tensor twice",
			map[string]any{"model-a.safetensors": one, "model-b.safetensors": one},
			`tensor "a": also in model-a.safetensors`,
		},
		{
			"a shard missing",
			map[string]any{indexName: index("model-1.safetensors")},
			`tensor "a": weight_map: its shard is missing`,
		},
		{"a tensor that is not in its shard", map[string]any{
			indexName:       `{"weight_map":{"b":"s.safetensors"}}`,
			"s.safetensors": one,
		}, `s.safetensors: tensor "b": missing, though`},
		{
			"a path out of the folder",
			map[string]any{indexName: index("../model.safetensors")},
			`refused: got "../model.safetensors"`,
		},
		{"an absolute path", map[string]any{indexName: index("/etc/passwd")}, `refused: got "/etc/passwd"`},
		{"a file that is no shard", map[string]any{indexName: index("config.json")}, `refused: got "config.json"`},
		{"an index without map", map[string]any{indexName: `{}`}, "weight_map: missing or empty"},
		{"an index that is no JSON", map[string]any{indexName: `[`}, "not an index"},
		{
			"generation_config.json that is no JSON",
			map[string]any{"generation_config.json": `[`},
			"generation_config.json: not a JSON object",
		},
	} {
		t.Run(row.why, func(t *testing.T) {
			files := map[string]any{"config.json": goodConfig}
			maps.Copy(files, row.files)
			dir := folder(t, files)
			_, err := Open(dir)
			var e *Error
			require.ErrorAs(t, err, &e)
			require.True(t, strings.HasPrefix(e.File, dir), e.File)
			require.ErrorContains(t, err, row.says)
			t.Log(err)
		})
	}
}

func TestNotACheckpoint(t *testing.T) {
	dir := folder(t, map[string]any{"m.gguf": "GGUF", "notes.txt": ""})
	for _, row := range []struct{ why, path, says string }{
		{"nothing there", filepath.Join(dir, "none"), "cannot open: want the folder of a Hugging Face checkpoint"},
		{"a GGUF file", filepath.Join(dir, "m.gguf"), "not a folder: got GGUF, want the folder"},
		{"some file", filepath.Join(dir, "notes.txt"), "not a folder: got a file"},
		{"a folder with GGUF", dir, "no config.json: got m.gguf (GGUF)"},
		{"an empty folder", t.TempDir(), "no config.json: got an empty folder"},
	} {
		_, err := Open(row.path)
		var e *Error
		require.ErrorAs(t, err, &e, row.why)
		require.Equal(t, row.path, e.File)
		require.ErrorContains(t, err, row.says, row.why)
	}
	_, err := Open(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// A checkpoint that fails to open in its second file must have let go of the first: only the
// kernel's list of mappings can tell.
func TestFailedOpenLeavesNothingMapped(t *testing.T) {
	mapped := func(dir string) int {
		data, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Skipf("needs /proc/self/maps: %v", err)
		}
		return strings.Count(string(data), dir)
	}
	dir := folder(t, map[string]any{"config.json": goodConfig, "model-a.safetensors": []Tensor{f32("a", 1)}})
	c, err := Open(dir)
	require.NoError(t, err)
	require.Equal(t, 1, mapped(dir), "an open checkpoint is seen")
	require.NoError(t, c.Close())
	require.Zero(t, mapped(dir), "and a closed one is not")

	require.NoError(t, os.WriteFile(filepath.Join(dir, "model-b.safetensors"), []byte("broken"), 0o600))
	_, err = Open(dir)
	require.ErrorContains(t, err, "model-b.safetensors: truncated")
	require.Zero(t, mapped(dir))
}

func TestConcurrentReaders(t *testing.T) {
	c, err := Open(folder(t, map[string]any{
		"config.json":       goodConfig,
		"model.safetensors": []Tensor{f32("a", 1), f32("b", 2)},
	}))
	require.NoError(t, err)
	defer c.Close()
	done := make(chan error)
	for range 4 {
		go func() {
			_, err := c.Weight("b", 2)
			done <- err
		}()
	}
	for range 4 {
		require.NoError(t, <-done)
	}
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(goodConfig))
	f.Add(config(map[string]string{"rope_scaling": `{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4}`, "eos_token_id": "[1,2]"}))
	f.Add(config(map[string]string{
		"architectures": `["Qwen2ForCausalLM"]`, "num_key_value_heads": "2",
		"use_sliding_window": "true", "layer_types": `["full_attention"]`,
	}))
	f.Add(config(map[string]string{
		"head_dim": "null", "sliding_window": "null",
		"architectures": `["MistralForCausalLM"]`,
	}))
	f.Fuzz(func(t *testing.T, data []byte) {
		var e *Error
		if _, err := parseGeneration("g", data, 512); err != nil {
			require.ErrorAs(t, err, &e)
		}
		if _, err := parseIndex("i", data); err != nil {
			require.ErrorAs(t, err, &e)
		}
		c, err := ParseConfig("c", data)
		if err != nil {
			require.ErrorAs(t, err, &e)
			return
		}
		for _, n := range []int{
			c.VocabSize, c.HiddenSize, c.IntermediateSize, c.NumLayers, c.NumHeads, c.NumKVHeads,
			c.HeadDim, c.MaxPositions,
		} {
			require.Positive(t, n)
		}
		require.Zero(t, c.NumHeads%c.NumKVHeads)
		c.LayerWindow(c.NumLayers - 1)
		require.Len(t, c.Rope.InvFreq(c.HeadDim), c.HeadDim/2)
	})
}
