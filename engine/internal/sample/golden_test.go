package sample

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHuggingFaceChains applies each chain of testdata/samplers.json, in its own order, and
// compares the processed logits with what transformers' LogitsProcessors gave (float32, CPU).
func TestHuggingFaceChains(t *testing.T) {
	f := readSafetensors(t, "testdata/samplers.safetensors")
	var golden struct {
		Cases []struct {
			Key, Input string
			Chain      [][]json.RawMessage
			Kept       []int
		}
	}
	read(t, "testdata/samplers.json", &golden)
	require.Len(t, golden.Cases, 102)
	worst := 0.0
	for _, c := range golden.Cases {
		t.Run(c.Key, func(t *testing.T) {
			rows, vocab := 4, 512
			topP := slices.ContainsFunc(c.Chain, func(link []json.RawMessage) bool {
				return string(link[0]) == `"top_p"`
			})
			in, want, probs := f.f32(c.Input), f.f32(c.Key), f.f32(c.Key+".probs")
			require.Len(t, in, rows*vocab)
			for r := range rows {
				row := slices.Clone(in[r*vocab : (r+1)*vocab])
				history := f.ids("history")[r*24 : (r+1)*24]
				for _, link := range c.Chain {
					var name string
					var args map[string]float64
					require.NoError(t, json.Unmarshal(link[0], &name))
					require.NoError(t, json.Unmarshal(link[1], &args))
					apply(t, name, args, row, history)
				}
				require.Equal(t, c.Kept[r], possible(row), "row %d: tokens kept", r)
				// which of several equal logits is kept is the sort's affair
				if topP && (c.Input == "in.ties" || c.Input == "in.flat") {
					compare(t, &worst, sorted(row), sorted(want[r*vocab:(r+1)*vocab]))
					continue
				}
				compare(t, &worst, row, want[r*vocab:(r+1)*vocab])
				compare(t, &worst, softmax(row), probs[r*vocab:(r+1)*vocab])
			}
		})
	}
	t.Logf("largest difference, relative to max(1, |logit|): %.2g", worst)
}

// apply runs one processor under its Hugging Face name.
func apply(t *testing.T, name string, args map[string]float64, row []float32, history []int32) {
	st := &State{Prompt: history}
	var u support
	switch name {
	case "temperature":
		for i := range row {
			row[i] /= float32(args["t"])
		}
		return
	case "repetition_penalty":
		penalize(row, st.count(), float32(args["r"]), 0, 0)
		return
	case "no_repeat_ngram":
		banNGrams(row, st, int(args["n"]))
		return
	case "min_new_tokens":
		st = &State{Prompt: history[:int(args["prompt"])], Output: history[int(args["prompt"]):]}
		if len(st.Output) < int(args["min"]) {
			banIDs(row, []int32{int32(args["eos"])})
		}
		return
	}
	u.gather(row, 1, negInf)
	switch name {
	case "top_k":
		floor := u.kthLargest(row, min(int(args["k"]), possible(row)))
		u.topK(int(args["k"]))
		for i, x := range row { // the heap and the selection agree
			require.Equal(t, x >= floor && x > negInf, slices.ContainsFunc(u.items, func(t item) bool {
				return int(t.id) == i
			}))
		}
	case "top_p":
		u.topP(args["p"])
	case "min_p":
		u.minP(args["p"])
	case "typical_p":
		u.typicalP(args["p"])
	case "epsilon":
		u.epsilon(args["e"])
	default:
		t.Fatalf("no processor %q", name)
	}
	for i := range row {
		row[i] = negInf
	}
	for _, t := range u.items {
		row[t.id] = t.z
	}
}

func compare(t *testing.T, worst *float64, got, want []float32) {
	t.Helper()
	for i := range want {
		if got[i] == want[i] {
			continue
		}
		d := math.Abs(float64(got[i])-float64(want[i])) / max(1, math.Abs(float64(want[i])))
		if !(d <= 1e-5) {
			t.Fatalf("[%d] is %v, want %v", i, got[i], want[i])
		}
		*worst = max(*worst, d)
	}
}

func sorted(row []float32) []float32 { s := slices.Clone(row); slices.Sort(s); return s }

func softmax(row []float32) []float32 {
	out, norm := make([]float32, len(row)), logSumExp(row)
	for i, x := range row {
		out[i] = float32(math.Exp(float64(x) - norm))
	}
	return out
}

func read(t *testing.T, path string, v any) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, v))
}

// tensors is a safetensors file of F32 and I64.
type tensors struct {
	head map[string]struct {
		Dtype   string
		Offsets [2]int `json:"data_offsets"`
	}
	data []byte
}

func readSafetensors(t *testing.T, path string) *tensors {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	n := binary.LittleEndian.Uint64(b)
	f := &tensors{data: b[8+n:]}
	require.NoError(t, json.Unmarshal(b[8:8+n], &f.head))
	return f
}

func (f *tensors) f32(name string) []float32 {
	o := f.head[name].Offsets
	out := make([]float32, (o[1]-o[0])/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(f.data[o[0]+4*i:]))
	}
	return out
}

func (f *tensors) ids(name string) []int32 {
	o := f.head[name].Offsets
	out := make([]int32, (o[1]-o[0])/8)
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint64(f.data[o[0]+8*i:]))
	}
	return out
}
