package gguf_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/internal/gguf"
)

func TestWriteBundled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	require.NoError(t, gguf.Write(path, fixtures.Bundled()))
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "GGUF\x03\x00\x00\x00", string(b[:8]))
	require.EqualValues(t, 56, binary.LittleEndian.Uint64(b[8:]), "tensors: 6 layers of 9, the embedding and the last norm")
	require.Zero(t, len(b)%32)
	for _, text := range []string{"tokenizer.chat_template", "blk.5.ffn_down.weight", "<|eos|>"} {
		require.True(t, bytes.Contains(b, []byte(text)), text)
	}
	require.ErrorContains(t, gguf.Write(path, fixtures.Checkpoint(t, fixtures.Spec{Architecture: fixtures.Qwen2})), "must be LlamaForCausalLM")
}

// The file is read back with a reader of its own: every key and every tensor is where the header
// says.
func TestWriteWithoutATokenizer(t *testing.T) {
	for _, dtype := range []string{fixtures.F32, fixtures.F16, fixtures.BF16} {
		dir := fixtures.Checkpoint(t, fixtures.Spec{DType: dtype})
		c, err := checkpoint.Open(dir)
		require.NoError(t, err)
		path := filepath.Join(t.TempDir(), "m.gguf")
		require.NoError(t, gguf.Write(path, dir))
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		keys, tensors, err := readGGUF(data)
		require.NoError(t, err)
		assert.Equal(t, "llama", keys["general.architecture"])
		assert.Equal(t, uint32(64), keys["llama.embedding_length"])
		assert.Len(t, keys["tokenizer.ggml.tokens"], 256)
		assert.Len(t, tensors, len(c.Names()))
		for name, from := range map[string]string{
			"token_embd.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight",
			"blk.1.attn_v.weight": "model.layers.1.self_attn.v_proj.weight", "blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj.weight",
		} {
			want, err := c.Tensor(from)
			require.NoError(t, err)
			got := tensors[name]
			assert.Equal(t, []uint64{uint64(want.Shape[1]), uint64(want.Shape[0])}, got.dims, name)
			assert.Equal(t, map[string]uint32{"F32": 0, "F16": 1, "BF16": 30}[dtype], got.code, name)
			assert.True(t, bytes.HasPrefix(data[got.at:], want.Data), name)
		}
		for _, norm := range []string{"blk.0.attn_norm.weight", "blk.1.ffn_norm.weight", "output_norm.weight"} {
			assert.Equal(t, uint32(0), tensors[norm].code, "llama.cpp wants norms in F32")
		}
		norm, err := c.Tensor("model.norm.weight")
		require.NoError(t, err)
		for i := range norm.Shape[0] {
			bits := binary.LittleEndian.Uint32(data[tensors["output_norm.weight"].at+int64(4*i):])
			require.InDelta(t, number(dtype, norm.Data, i), math.Float32frombits(bits), 0, "%s [%d]", dtype, i)
		}
		require.NoError(t, c.Close())
	}
}

// number decodes a normal number of a tensor.
func number(dtype string, data []byte, i int) float32 {
	if dtype == fixtures.F32 {
		return math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	h := binary.LittleEndian.Uint16(data[2*i:])
	if dtype == fixtures.BF16 {
		return math.Float32frombits(uint32(h) << 16)
	}
	v := math.Pow(2, float64(h>>10&31)-15) * (1 + float64(h&1023)/1024)
	return float32(math.Copysign(v, 0.5-float64(h>>15)))
}

type located struct {
	dims []uint64
	code uint32
	at   int64
}

func readGGUF(data []byte) (keys map[string]any, tensors map[string]located, err error) {
	r := bytes.NewReader(data)
	get := func(v any) { err = errors.Join(err, binary.Read(r, binary.LittleEndian, v)) }
	u32 := func() (v uint32) { get(&v); return v }
	u64 := func() (v uint64) { get(&v); return v }
	text := func() string { b := make([]byte, u64()); get(b); return string(b) }
	if magic := data[:4]; string(magic) != "GGUF" {
		return nil, nil, fmt.Errorf("magic %q", magic)
	}
	_, _ = r.Seek(4, 0)
	if v := u32(); v != 3 {
		return nil, nil, fmt.Errorf("version %d", v)
	}
	nTensors, nKeys := u64(), u64()
	keys, tensors = map[string]any{}, map[string]located{}
	var value func(kind uint32) any
	value = func(kind uint32) any {
		switch kind {
		case 4, 5:
			return u32()
		case 6:
			var f float32
			get(&f)
			return f
		case 8:
			return text()
		case 9:
			kind, list := u32(), make([]any, u64())
			for i := range list {
				list[i] = value(kind)
			}
			return list
		}
		err = errors.Join(err, fmt.Errorf("kind %d", kind))
		return nil
	}
	for range nKeys {
		name := text()
		keys[name] = value(u32())
	}
	for range nTensors {
		name := text()
		t := located{dims: make([]uint64, u32())}
		get(t.dims)
		t.code, t.at = u32(), int64(u64())
		tensors[name] = t
	}
	start := (int64(len(data)) - int64(r.Len()) + 31) / 32 * 32
	for name, t := range tensors {
		if t.at += start; t.at%32 != 0 || t.at >= int64(len(data)) {
			err = errors.Join(err, fmt.Errorf("%s at %d of %d", name, t.at, len(data)))
		}
		tensors[name] = t
	}
	return keys, tensors, err
}
