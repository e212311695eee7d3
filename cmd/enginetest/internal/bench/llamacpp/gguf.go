package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"

	"github.com/enginetest/enginetest/internal/checkpoint"
)

// GGUF (github.com/ggml-org/ggml/blob/master/docs/gguf.md): a header of keys and of tensor
// descriptions, then the tensors, each at a multiple of 32 bytes. Numbers are little-endian,
// strings have a 64-bit length before them.

// The types of a key's value.
const (
	ggufUint32  uint32 = 4
	ggufInt32   uint32 = 5
	ggufFloat32 uint32 = 6
	ggufString  uint32 = 8
	ggufArray   uint32 = 9
)

const ggufAlignment = 32

// ggmlTypes are the numbers of the weight types.
var ggmlTypes = map[checkpoint.DType]uint32{checkpoint.F32: 0, checkpoint.F16: 1, checkpoint.BF16: 30}

// writeGGUF writes a Llama checkpoint's numbers as a GGUF file. Norms become F32, as llama.cpp
// wants them. Rows of q and k stay in Hugging Face's order, which llama.cpp would take for another
// rotation: the file is for measuring speed, not for reading its text.
func writeGGUF(path string, c *checkpoint.Checkpoint) (err error) {
	if a := c.Config.Architecture; a != "LlamaForCausalLM" {
		return fmt.Errorf("gguf: %s: only LlamaForCausalLM can be written", a)
	}
	tensors, err := ggufTensors(c)
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := &ggufWriter{Writer: bufio.NewWriterSize(f, 1<<20)}
	w.header(c.Config, tensors)
	for _, t := range tensors {
		w.pad()
		w.bytes(t.data)
	}
	w.pad()
	return errors.Join(w.err, w.Flush())
}

type ggufTensor struct {
	name  string
	shape []int
	code  uint32
	data  []byte
}

// ggufTensors renames a checkpoint's tensors.
func ggufTensors(c *checkpoint.Checkpoint) ([]ggufTensor, error) {
	rename := strings.NewReplacer(
		"model.embed_tokens", "token_embd", "lm_head", "output", "model.norm", "output_norm", "model.layers.", "blk.",
		"self_attn.q_proj", "attn_q", "self_attn.k_proj", "attn_k", "self_attn.v_proj", "attn_v", "self_attn.o_proj", "attn_output",
		"mlp.gate_proj", "ffn_gate", "mlp.up_proj", "ffn_up", "mlp.down_proj", "ffn_down",
		"input_layernorm", "attn_norm", "post_attention_layernorm", "ffn_norm",
	)
	var out []ggufTensor
	for _, name := range c.Names() {
		t, err := c.Tensor(name)
		if err != nil {
			return nil, err
		}
		g := ggufTensor{name: rename.Replace(name), shape: t.Shape, code: ggmlTypes[t.DType], data: t.Data}
		if len(t.Shape) == 1 && t.DType != checkpoint.F32 {
			g.code, g.data = ggmlTypes[checkpoint.F32], ones(t.Shape[0])
		}
		out = append(out, g)
	}
	return out, nil
}

// ones are n float32 of 1: what a norm of a random checkpoint may as well be.
func ones(n int) []byte {
	var b []byte
	for range n {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(1))
	}
	return b
}

type ggufWriter struct {
	*bufio.Writer
	at  int64
	err error
}

func (w *ggufWriter) bytes(b []byte) {
	n, err := w.Write(b)
	w.at += int64(n)
	w.err = errors.Join(w.err, err)
}

func (w *ggufWriter) pad() { w.bytes(make([]byte, -w.at&(ggufAlignment-1))) }

// put writes numbers, and strings with their length.
func (w *ggufWriter) put(values ...any) {
	for _, v := range values {
		if s, ok := v.(string); ok {
			w.put(uint64(len(s)))
			w.bytes([]byte(s))
			continue
		}
		b, err := binary.Append(nil, binary.LittleEndian, v)
		w.err = errors.Join(w.err, err)
		w.bytes(b)
	}
}

func (w *ggufWriter) header(c checkpoint.Config, tensors []ggufTensor) {
	vocab := make([]string, c.VocabSize)
	kinds := make([]int32, c.VocabSize)
	for i := range vocab {
		switch {
		case i < 3:
			vocab[i], kinds[i] = []string{"<unk>", "<s>", "</s>"}[i], []int32{2, 3, 3}[i]
		case i < 3+256:
			vocab[i], kinds[i] = fmt.Sprintf("<0x%02X>", i-3), 6
		default:
			vocab[i], kinds[i] = fmt.Sprintf("t%d", i), 1
		}
	}
	keys := []struct {
		name  string
		value any
	}{
		{"general.architecture", "llama"},
		{"general.name", "random"},
		{"llama.block_count", uint32(c.NumLayers)},
		{"llama.context_length", uint32(c.MaxPositions)},
		{"llama.embedding_length", uint32(c.HiddenSize)},
		{"llama.feed_forward_length", uint32(c.IntermediateSize)},
		{"llama.attention.head_count", uint32(c.NumHeads)},
		{"llama.attention.head_count_kv", uint32(c.NumKVHeads)},
		{"llama.attention.layer_norm_rms_epsilon", float32(c.RMSNormEps)},
		{"llama.rope.dimension_count", uint32(c.HeadDim)},
		{"llama.vocab_size", uint32(c.VocabSize)},
		{"tokenizer.ggml.model", "llama"},
		{"tokenizer.ggml.tokens", vocab},
		{"tokenizer.ggml.scores", make([]float32, c.VocabSize)},
		{"tokenizer.ggml.token_type", kinds},
		{"tokenizer.ggml.bos_token_id", uint32(1)},
		{"tokenizer.ggml.eos_token_id", uint32(2)},
	}
	w.bytes([]byte("GGUF"))
	w.put(uint32(3), uint64(len(tensors)), uint64(len(keys)))
	for _, k := range keys {
		w.put(k.name)
		switch v := k.value.(type) {
		case uint32:
			w.put(ggufUint32, v)
		case float32:
			w.put(ggufFloat32, v)
		case string:
			w.put(ggufString, v)
		case []string:
			w.put(ggufArray, ggufString, uint64(len(v)))
			for _, s := range v {
				w.put(s)
			}
		case []float32:
			w.put(ggufArray, ggufFloat32, uint64(len(v)), v)
		case []int32:
			w.put(ggufArray, ggufInt32, uint64(len(v)), v)
		}
	}
	at := int64(0)
	for _, t := range tensors {
		w.put(t.name, uint32(len(t.shape)))
		for i := range t.shape {
			w.put(uint64(t.shape[len(t.shape)-1-i])) // the fastest dimension first
		}
		w.put(t.code, uint64(at))
		at += int64(len(t.data)+ggufAlignment-1) / ggufAlignment * ggufAlignment
	}
}
