package checkpoint

import (
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Pooling is how a checkpoint of sentence-transformers turns hidden states into an embedding:
// modules.json lists the steps, 1_Pooling/config.json says which rows are kept.
type Pooling struct {
	Type      string // "last", "mean" or "cls"; "" when the checkpoint has no modules.json
	Normalize bool   // a Normalize module comes last
	MaxTokens int    // sentence_bert_config.json's max_seq_length; 0: none
}

// module is an entry of modules.json.
type module struct{ Path, Type string }

// ReadPooling reads the files of sentence-transformers in dir; the zero Pooling when there are none.
func ReadPooling(dir string, hidden int) (Pooling, error) {
	path := filepath.Join(dir, "modules.json")
	data, err := readJSON(path)
	if errors.Is(err, fs.ErrNotExist) && !present(path) {
		return Pooling{}, nil
	}
	if err != nil {
		return Pooling{}, err
	}
	modules, err := parseModules(path, data)
	if err != nil {
		return Pooling{}, err
	}
	p := Pooling{Normalize: modules[len(modules)-1].kind() == "Normalize"}
	for i, m := range modules {
		switch kind := m.kind(); {
		case i == 0 && kind == "Transformer", i > 1 && i == len(modules)-1 && kind == "Normalize":
		case i == 1 && kind == "Pooling":
			// the path is joined as a rooted one, so that it cannot leave the folder
			file := filepath.Join(dir, filepath.Join("/", m.Path), "config.json")
			if p.Type, err = readPoolingType(file, hidden); err != nil {
				return Pooling{}, err
			}
		default:
			return Pooling{}, &Error{
				File: path, Field: "[" + strconv.Itoa(i) + "].type", Reason: "unsupported module", Got: m.Type,
				Want: "a Transformer, a Pooling and perhaps a Normalize module, in this order",
			}
		}
	}
	if p.Type == "" {
		return Pooling{}, &Error{File: path, Reason: "no Pooling module", Got: strconv.Itoa(len(modules)) + " module"}
	}
	p.MaxTokens, err = readMaxTokens(filepath.Join(dir, "sentence_bert_config.json"))
	return p, err
}

// kind is the class without its package, which versions of sentence-transformers have moved.
func (m module) kind() string { return m.Type[strings.LastIndexByte(m.Type, '.')+1:] }

func parseModules(path string, data []byte) (modules []module, err error) {
	if err := json.Unmarshal(data, &modules); err != nil {
		return nil, &Error{File: path, Reason: "not a list of modules", Err: err}
	}
	if len(modules) == 0 {
		return nil, &Error{File: path, Reason: "an empty list", Want: "a Transformer and a Pooling module"}
	}
	return modules, nil
}

// poolingModes are the modes of sentence-transformers and what they are called here; "" is one that
// is not supported.
var poolingModes = map[string]string{
	"cls": "cls", "mean": "mean", "lasttoken": "last", "max": "", "mean_sqrt_len_tokens": "", "weightedmean": "",
}

// readPoolingType reads 1_Pooling/config.json: pooling_mode as a text, or a flag per mode.
func readPoolingType(path string, hidden int) (string, error) {
	data, err := readJSON(path)
	if err != nil {
		return "", err
	}
	f, err := parseFields(path, data)
	if err != nil {
		return "", err
	}
	for _, key := range []string{"word_embedding_dimension", "embedding_dimension"} {
		if n := f.integer(key, hidden, 1, maxWidth); n != hidden {
			f.fail(key, "is not the model's hidden_size", strconv.Itoa(n), strconv.Itoa(hidden))
		}
	}
	var modes []string
	if mode := f.string("pooling_mode", ""); mode != "" {
		modes = []string{mode}
	} else {
		modes = f.poolingFlags()
	}
	if *f.err != nil {
		return "", *f.err
	}
	if len(modes) != 1 || poolingModes[modes[0]] == "" {
		return "", &Error{
			File: path, Field: "pooling_mode", Reason: "unsupported pooling", Got: strings.Join(modes, " and "),
			Want: "one of cls, mean and lasttoken",
		}
	}
	return poolingModes[modes[0]], nil
}

// poolingFlags lists the modes whose flag is set, sorted.
func (f *fields) poolingFlags() (modes []string) {
	for key := range f.raw {
		mode, ok := strings.CutPrefix(key, "pooling_mode_")
		if ok && f.bool(key) {
			if trimmed := strings.TrimSuffix(mode, "_tokens"); poolingModes[trimmed] != "" {
				mode = trimmed // mean_tokens
			}
			modes = append(modes, strings.TrimSuffix(mode, "_token")) // cls_token
		}
	}
	slices.Sort(modes)
	return modes
}

func readMaxTokens(path string) (int, error) {
	data, err := readJSON(path)
	if errors.Is(err, fs.ErrNotExist) && !present(path) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	f, err := parseFields(path, data)
	if err != nil {
		return 0, err
	}
	return f.integer("max_seq_length", 0, 1, maxPositions), *f.err
}
