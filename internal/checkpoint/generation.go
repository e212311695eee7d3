package checkpoint

import (
	"errors"
	"io/fs"
	"math"
)

// Generation is generation_config.json: the sampling defaults that the model's authors recommend. A nil field is one that the file does not set.
type Generation struct {
	EOS               []int32 // nil when the file has none; it then leaves config.json's
	DoSample          *bool
	Temperature       *float64
	TopK              *int
	TopP              *float64
	MinP              *float64
	RepetitionPenalty *float64
	MaxNewTokens      *int
}

// readGeneration reads generation_config.json; a checkpoint without one has the zero Generation.
func readGeneration(path string, vocab int) (Generation, error) {
	data, err := readJSON(path)
	if errors.Is(err, fs.ErrNotExist) && !present(path) {
		return Generation{}, nil
	}
	if err != nil {
		return Generation{}, err
	}
	return parseGeneration(path, data, vocab)
}

func parseGeneration(path string, data []byte, vocab int) (Generation, error) {
	f, err := parseFields(path, data)
	if err != nil {
		return Generation{}, err
	}
	g := Generation{
		EOS:               f.ids("eos_token_id", vocab),
		Temperature:       optional(f, "temperature", f.number("temperature", 0, 0, math.MaxFloat32)),
		TopK:              optional(f, "top_k", f.integer("top_k", 0, -1, math.MaxInt32)),
		TopP:              optional(f, "top_p", f.number("top_p", 0, 0, 1)),
		MinP:              optional(f, "min_p", f.number("min_p", 0, 0, 1)),
		RepetitionPenalty: optional(f, "repetition_penalty", f.number("repetition_penalty", 0, math.SmallestNonzeroFloat64, math.MaxFloat32)),
		MaxNewTokens:      optional(f, "max_new_tokens", f.integer("max_new_tokens", 0, 1, math.MaxInt32)),
		DoSample:          optional(f, "do_sample", f.bool("do_sample")),
	}
	return g, *f.err
}

func optional[T any](f *fields, key string, v T) *T {
	if !f.has(key) {
		return nil
	}
	return &v
}
