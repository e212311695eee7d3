package checkpoint

import (
	"errors"
	"io/fs"
)

// generationEOS returns the ids that end a sequence by generation_config.json; nil when there is no
// such file or it has none. What else is in it, the sampling that the model's authors recommend, is
// not used: a request says how it is sampled.
func generationEOS(path string, vocab int) ([]int32, error) {
	data, err := readJSON(path)
	if errors.Is(err, fs.ErrNotExist) && !present(path) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseGeneration(path, data, vocab)
}

func parseGeneration(path string, data []byte, vocab int) ([]int32, error) {
	f, err := parseFields(path, data)
	if err != nil {
		return nil, err
	}
	return f.ids("eos_token_id", vocab), *f.err
}
