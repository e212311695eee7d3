// Package checkpoint reads a Hugging Face checkpoint folder: config.json, generation_config.json
// and safetensors weights, memory-mapped and used as they lie in the file.
//
// Everything in a checkpoint is taken for hostile: nothing is allocated because a header says so,
// every size is checked before it is used, and whatever is wrong is an [*Error] that names the
// file, the tensor or field, what it has and what is accepted:
//
//	checkpoint: m/config.json: architectures: unknown architecture: got GPT2LMHeadModel, want one of LlamaForCausalLM, MistralForCausalLM, …
//	checkpoint: m/config.json: rope_scaling.rope_type: unknown rope type: got "yarn", want "default" or "llama3"
//	checkpoint: m/model.safetensors: tensor "lm_head.weight": data_offsets: outside the file (truncated?): got [0, 64], want at most 60 bytes of data
//	checkpoint: m/model.safetensors: tensor "model.norm.weight": wrong shape: got F32 [32], want [64]
//	checkpoint: m: no safetensors weights: got m-q4.gguf (GGUF), want model.safetensors, …
package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Checkpoint is an open checkpoint. It is safe for concurrent use until Close.
type Checkpoint struct {
	Dir    string
	Config Config

	eos     []int32 // generation_config.json's
	files   []*File
	tensors map[string]Tensor
	unused  unused
}

// Open reads the configuration of the checkpoint in dir and maps its weights. It checks every
// file's header, reads no weights, and leaves nothing mapped when it fails.
func Open(dir string) (*Checkpoint, error) {
	if err := checkFolder(dir); err != nil {
		return nil, err
	}
	c := &Checkpoint{Dir: dir, tensors: map[string]Tensor{}}
	var err error
	if c.Config, err = ReadConfig(filepath.Join(dir, "config.json")); err != nil {
		return nil, err
	}
	if c.eos, err = generationEOS(filepath.Join(dir, "generation_config.json"), c.Config.VocabSize); err != nil {
		return nil, err
	}
	if err := c.openWeights(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	c.unused.fill(c.tensors)
	c.detectPrefix()
	return c, nil
}

// Close unmaps the weights. Using a tensor afterwards is the caller's fault (the process dies of a
// fault that no recover catches).
func (c *Checkpoint) Close() error {
	var errs []error
	for _, f := range c.files {
		errs = append(errs, f.Close())
	}
	c.files, c.tensors = nil, nil
	return errors.Join(errs...)
}

// Names lists all tensors, sorted.
func (c *Checkpoint) Names() []string { return slices.Sorted(maps.Keys(c.tensors)) }

// Mappings lists the memory that the weights occupy, a region a file.
func (c *Checkpoint) Mappings() []Mapping {
	list := make([]Mapping, len(c.files))
	for i, f := range c.files {
		list[i] = f.Mapping()
	}
	return list
}

// Has reports whether there is such a tensor.
func (c *Checkpoint) Has(name string) bool {
	_, ok := c.tensors[name]
	return ok
}

// Tensor finds a tensor of any type.
func (c *Checkpoint) Tensor(name string) (Tensor, error) {
	if t, ok := c.tensors[name]; ok {
		return t, nil
	}
	files := make([]string, len(c.files))
	for i, f := range c.files {
		files[i] = filepath.Base(f.Path)
		if _, ok := f.tensors[name]; ok {
			return Tensor{}, &Error{
				File: c.Dir, Tensor: name,
				Reason: fmt.Sprintf("missing: %s has it, but %s does not list it", files[i], indexName),
			}
		}
	}
	slices.Sort(files)
	e := &Error{File: c.Dir, Tensor: name, Reason: fmt.Sprintf("missing: not among the %d tensors of %s",
		len(c.tensors), abridge(files))}
	for _, near := range []string{strings.TrimPrefix(name, "model."), "model." + name} {
		if near != name && c.Has(near) {
			e.Reason += fmt.Sprintf(" (there is %q)", near)
		}
	}
	return Tensor{}, e
}

// Weight finds a tensor that is F32, BF16 or F16 and has this shape.
func (c *Checkpoint) Weight(name string, shape ...int) (Tensor, error) {
	t, err := c.Tensor(name)
	if err != nil {
		return Tensor{}, err
	}
	if !slices.Equal(t.Shape, shape) {
		return Tensor{}, &Error{
			File: t.File, Tensor: name, Reason: "wrong shape",
			Got: fmt.Sprintf("%s %v", t.DType, t.Shape), Want: fmt.Sprint(shape),
		}
	}
	if !t.DType.IsWeight() {
		return Tensor{}, &Error{
			File: t.File, Tensor: name, Reason: "unsupported type", Got: string(t.DType),
			Want: weightTypes,
		}
	}
	c.unused.drop(name)
	return t, nil
}

// EOS lists the ids that end a sequence: generation_config.json's, or else config.json's.
func (c *Checkpoint) EOS() []int32 {
	if c.eos != nil {
		return c.eos
	}
	return c.Config.EOS
}

// TokenizerPath is the path of tokenizer.json, or "" when the checkpoint has none.
func (c *Checkpoint) TokenizerPath() string {
	path := filepath.Join(c.Dir, "tokenizer.json")
	if !present(path) {
		return ""
	}
	return path
}

// present reports whether a folder lists a file, be it a link that leads nowhere, as half a
// download leaves behind: that is broken, not optional.
func present(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// checkFolder tells a checkpoint folder from what else a path may name.
func checkFolder(dir string) error {
	const want = "the folder of a Hugging Face checkpoint (config.json and *.safetensors)"
	info, err := os.Stat(dir)
	if err != nil {
		return &Error{File: dir, Reason: "cannot open", Want: want, Err: err}
	}
	if !info.IsDir() {
		return &Error{File: dir, Reason: "not a folder", Got: cmp.Or(formatOf(dir), "a file"), Want: want}
	}
	if _, err := os.Stat(filepath.Join(dir, "config.json")); err != nil {
		return &Error{File: dir, Reason: "no config.json", Got: contents(dir), Want: want, Err: err}
	}
	return nil
}

// formatOf names the format that a file's name says, "" when it says none that is used for weights.
func formatOf(name string) string {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".gguf":
		return "GGUF"
	case ".bin", ".pt", ".pth", ".ckpt":
		return "PyTorch pickle"
	case ".onnx":
		return "ONNX"
	case ".h5", ".msgpack":
		return "TensorFlow or Flax"
	case ".safetensors":
		return "safetensors"
	}
	return ""
}

// contents says what a folder holds: its weight files with their format, or else its first files.
func contents(dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "an unreadable folder"
	}
	var weights, others []string
	for _, e := range entries {
		if format := formatOf(e.Name()); format != "" {
			weights = append(weights, fmt.Sprintf("%s (%s)", e.Name(), format))
		} else {
			others = append(others, e.Name())
		}
	}
	switch {
	case len(weights) > 0:
		return abridge(weights)
	case len(others) > 0:
		return abridge(others)
	}
	return "an empty folder"
}

func abridge(names []string) string {
	const most = 4
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
