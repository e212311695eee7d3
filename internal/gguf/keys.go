package gguf

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/enginetest/enginetest/internal/checkpoint"
)

// Token types of GGUF.
const (
	tokenNormal  int32 = 1
	tokenUnknown int32 = 2
	tokenControl int32 = 3
	tokenByte    int32 = 6
)

func keysOf(c *checkpoint.Checkpoint) ([]key, error) {
	cfg := c.Config
	if cfg.Rope.Theta == 0 {
		return nil, errors.New("gguf: the checkpoint has no rope_theta")
	}
	keys := []key{
		{"general.architecture", "llama"},
		{"general.name", filepath.Base(c.Dir)},
		{"llama.block_count", uint32(cfg.NumLayers)},
		{"llama.context_length", uint32(cfg.MaxPositions)},
		{"llama.embedding_length", uint32(cfg.HiddenSize)},
		{"llama.feed_forward_length", uint32(cfg.IntermediateSize)},
		{"llama.attention.head_count", uint32(cfg.NumHeads)},
		{"llama.attention.head_count_kv", uint32(cfg.NumKVHeads)},
		{"llama.attention.layer_norm_rms_epsilon", float32(cfg.RMSNormEps)},
		{"llama.attention.key_length", uint32(cfg.HeadDim)},
		{"llama.attention.value_length", uint32(cfg.HeadDim)},
		{"llama.rope.dimension_count", uint32(cfg.HeadDim)},
		{"llama.rope.freq_base", float32(cfg.Rope.Theta)},
		{"llama.vocab_size", uint32(cfg.VocabSize)},
	}
	tok, err := tokenizerKeys(c.TokenizerPath(), cfg.VocabSize)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return append(keys, madeUpTokens(cfg.VocabSize)...), nil
	case err != nil:
		return nil, err
	case len(cfg.EOS) == 0:
		return nil, errors.New("gguf: the checkpoint has no eos_token_id")
	}
	keys = append(keys, tok...)
	keys = append(keys, key{"tokenizer.ggml.eos_token_id", uint32(cfg.EOS[0])},
		key{"tokenizer.ggml.bos_token_id", uint32(cfg.EOS[0])})
	if text := chatTemplate(c.Dir); text != "" {
		keys = append(keys, key{"tokenizer.chat_template", text})
	}
	return keys, nil
}

// madeUpTokens is a vocabulary for a checkpoint without a tokenizer: llama.cpp loads no file without
// one, and measures speed on token ids.
func madeUpTokens(vocabSize int) []key {
	texts, kinds := make([]string, vocabSize), make([]int32, vocabSize)
	for i := range texts {
		switch {
		case i < 3:
			texts[i], kinds[i] = []string{"<unk>", "<s>", "</s>"}[i], []int32{tokenUnknown, tokenControl, tokenControl}[i]
		case i < 3+256:
			texts[i], kinds[i] = fmt.Sprintf("<0x%02X>", i-3), tokenByte
		default:
			texts[i], kinds[i] = fmt.Sprintf("t%d", i), tokenNormal
		}
	}
	return []key{
		{"tokenizer.ggml.model", "llama"},
		{"tokenizer.ggml.tokens", texts},
		{"tokenizer.ggml.scores", make([]float32, vocabSize)},
		{"tokenizer.ggml.token_type", kinds},
		{"tokenizer.ggml.bos_token_id", uint32(1)},
		{"tokenizer.ggml.eos_token_id", uint32(2)},
	}
}

// tokenizerKeys reads a byte-level BPE tokenizer.json.
func tokenizerKeys(path string, vocabSize int) ([]key, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var t struct {
		Added []struct {
			ID      int
			Content string
			Special bool
		} `json:"added_tokens"`
		Model struct {
			Type   string
			Vocab  map[string]int
			Merges [][]string
		}
	}
	if err := json.Unmarshal(b, &t); err != nil {
		return nil, fmt.Errorf("gguf: %s: %w", path, err)
	}
	if t.Model.Type != "BPE" || len(t.Model.Merges) == 0 {
		return nil, fmt.Errorf("gguf: %s: model is %q with %d merges, must be a byte-level BPE", path, t.Model.Type, len(t.Model.Merges))
	}
	tokens, kinds := make([]string, vocabSize), make([]int32, vocabSize)
	for i := range tokens {
		tokens[i], kinds[i] = fmt.Sprintf("[unused%d]", i), tokenNormal
	}
	for text, id := range t.Model.Vocab {
		if id < 0 || id >= vocabSize {
			return nil, fmt.Errorf("gguf: %s: id of %q is %d, must be below the vocabulary's %d", path, text, id, vocabSize)
		}
		tokens[id] = text
	}
	for _, a := range t.Added {
		if a.ID >= 0 && a.ID < vocabSize && a.Special {
			tokens[a.ID], kinds[a.ID] = a.Content, tokenControl
		}
	}
	merges := make([]string, len(t.Model.Merges))
	for i, m := range t.Model.Merges {
		merges[i] = strings.Join(m, " ")
	}
	return []key{
		{"tokenizer.ggml.model", "gpt2"},
		{"tokenizer.ggml.pre", "gpt-2"},
		{"tokenizer.ggml.tokens", tokens},
		{"tokenizer.ggml.token_type", kinds},
		{"tokenizer.ggml.merges", merges},
		{"tokenizer.ggml.add_bos_token", false},
	}, nil
}

func chatTemplate(dir string) string {
	b, err := os.ReadFile(filepath.Join(dir, "tokenizer_config.json"))
	if err != nil {
		return ""
	}
	var t struct {
		ChatTemplate string `json:"chat_template"`
	}
	_ = json.Unmarshal(b, &t) // a list of templates: none is the default
	return t.ChatTemplate
}
