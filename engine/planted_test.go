package engine

import (
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/fixtures"
)

// plant makes a random checkpoint say one token after each other: its layers add nothing, and row
// next[i] of the output layer is the embedding of token i. They are computed all the same.
func plant(tb testing.TB, s fixtures.Spec, next []int) string {
	tb.Helper()
	s.Vocab = len(next)
	dir := fixtures.Checkpoint(tb, s)
	f, err := os.OpenFile(filepath.Join(dir, "model.safetensors"), os.O_RDWR, 0)
	require.NoError(tb, err)
	defer func() { require.NoError(tb, f.Close()) }()
	var size [8]byte
	_, err = f.ReadAt(size[:], 0)
	require.NoError(tb, err)
	n := int64(binary.LittleEndian.Uint64(size[:]))
	header := make([]byte, n)
	_, err = f.ReadAt(header, 8)
	require.NoError(tb, err)
	var tensors map[string]struct {
		Offsets [2]int64 `json:"data_offsets"`
	}
	require.NoError(tb, json.Unmarshal(header, &tensors))
	read := func(name string) []byte {
		at := tensors[name].Offsets
		data := make([]byte, at[1]-at[0])
		_, err := f.ReadAt(data, 8+n+at[0])
		require.NoError(tb, err, name)
		return data
	}
	write := func(name string, data []byte) {
		_, err := f.WriteAt(data, 8+n+tensors[name].Offsets[0])
		require.NoError(tb, err, name)
	}
	for name, at := range tensors {
		if strings.HasSuffix(name, "o_proj.weight") || strings.HasSuffix(name, "down_proj.weight") {
			write(name, make([]byte, at.Offsets[1]-at.Offsets[0]))
		}
	}
	embed := read("model.embed_tokens.weight")
	output, row := make([]byte, len(embed)), len(embed)/len(next)
	for i, to := range next {
		copy(output[to*row:], embed[i*row:(i+1)*row])
	}
	write("lm_head.weight", output)
	return dir
}

// plantedPair makes a target that goes through all tokens of a vocabulary in some order, and a draft
// that agrees with it after each token with a probability.
func plantedPair(tb testing.TB, target, draft fixtures.Spec, vocab int, agree float64) (string, string) {
	tb.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	order := rng.Perm(vocab)
	next, guess := make([]int, vocab), make([]int, vocab)
	for i, id := range order {
		next[id] = order[(i+1)%vocab]
	}
	var wrong []int // these are guessed as those after them
	for id := range next {
		if guess[id] = next[id]; rng.Float64() >= agree {
			wrong = append(wrong, id)
		}
	}
	for i, id := range wrong {
		guess[id] = next[wrong[(i+1)%len(wrong)]]
	}
	return plant(tb, target, next), plant(tb, draft, guess)
}
