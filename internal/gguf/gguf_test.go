package gguf_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/internal/gguf"
)

func TestWrite(t *testing.T) {
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
