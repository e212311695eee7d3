package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

const indexName = "model.safetensors.index.json"

// openWeights takes model.safetensors, or else what the index lists, or else all of
// model*.safetensors: the order of transformers.
func (c *Checkpoint) openWeights() error {
	single := filepath.Join(c.Dir, "model.safetensors")
	if exists(single) {
		return c.addAll([]string{single})
	}
	if index := filepath.Join(c.Dir, indexName); exists(index) {
		return c.openIndex(index)
	}
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return &Error{File: c.Dir, Reason: "cannot list", Err: err}
	}
	var paths []string
	for _, e := range entries {
		if ok, _ := filepath.Match("model*.safetensors", e.Name()); ok {
			paths = append(paths, filepath.Join(c.Dir, e.Name()))
		}
	}
	if len(paths) == 0 {
		return &Error{
			File: c.Dir, Reason: "no safetensors weights", Got: contents(c.Dir),
			Want: "model.safetensors, " + indexName + " with its shards, or model*.safetensors",
		}
	}
	if err := c.checkShards(paths); err != nil {
		return err
	}
	return c.addAll(paths)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (c *Checkpoint) open(path string) (*File, error) {
	f, err := OpenFile(path)
	if err == nil {
		c.files = append(c.files, f)
	}
	return f, err
}

func (c *Checkpoint) addAll(paths []string) error {
	for _, path := range paths {
		f, err := c.open(path)
		if err != nil {
			return err
		}
		for name, t := range f.tensors {
			if other, dup := c.tensors[name]; dup {
				return &Error{
					File: path, Tensor: name, Reason: "also in " + filepath.Base(other.File),
					Want: "every tensor in one file, or an index",
				}
			}
			c.tensors[name] = t
		}
	}
	return nil
}

// openIndex opens the shards that the index names and takes from each the tensors that it says.
func (c *Checkpoint) openIndex(index string) error {
	weightMap, err := readIndex(index)
	if err != nil {
		return err
	}
	shards := map[string]*File{}
	for _, name := range slices.Sorted(maps.Keys(weightMap)) {
		file := weightMap[name]
		shard := shards[file]
		if shard == nil {
			if shard, err = c.openShard(index, name, file); err != nil {
				return err
			}
			shards[file] = shard
		}
		t, ok := shard.Tensor(name)
		if !ok {
			return &Error{File: shard.Path, Tensor: name, Reason: "missing, though " + indexName + " puts it here"}
		}
		c.tensors[name] = t
	}
	return nil
}

func (c *Checkpoint) openShard(index, tensor, file string) (*File, error) {
	if !filepath.IsLocal(file) || filepath.Ext(file) != ".safetensors" {
		return nil, &Error{
			File: index, Tensor: tensor, Field: "weight_map", Reason: "refused",
			Got: strconv.Quote(clip(file)), Want: "a .safetensors file inside the checkpoint's folder",
		}
	}
	f, err := c.open(filepath.Join(c.Dir, file))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &Error{
			File: index, Tensor: tensor, Field: "weight_map", Reason: "its shard is missing",
			Got: contents(c.Dir), Want: clip(file), Err: fs.ErrNotExist,
		}
	}
	return f, err
}

func readIndex(path string) (map[string]string, error) {
	data, err := readJSON(path)
	if err != nil {
		return nil, err
	}
	return parseIndex(path, data)
}

func parseIndex(path string, data []byte) (map[string]string, error) {
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, &Error{File: path, Reason: "not an index", Want: `{"weight_map": {tensor: file, …}}`, Err: err}
	}
	if len(index.WeightMap) == 0 {
		return nil, &Error{File: path, Field: "weight_map", Reason: "missing or empty"}
	}
	return index.WeightMap, nil
}

var shardName = regexp.MustCompile(`-(\d{5})-of-(\d{5})\.safetensors$`)

// checkShards finds the gap in a set of files named model-00001-of-00003.safetensors, … that has no
// index.
func (c *Checkpoint) checkShards(paths []string) error {
	m := shardName.FindStringSubmatch(paths[0])
	if m == nil {
		return nil
	}
	total, _ := strconv.Atoi(m[2])
	for i := 1; i <= total; i++ {
		tail := fmt.Sprintf("-%05d-of-%s.safetensors", i, m[2])
		if !slices.ContainsFunc(paths, func(p string) bool {
			return len(p) > len(tail) && p[len(p)-len(tail):] == tail
		}) {
			return &Error{
				File: c.Dir, Reason: "a shard is missing, and so is " + indexName, Got: contents(c.Dir),
				Want: "model" + tail,
			}
		}
	}
	return nil
}
