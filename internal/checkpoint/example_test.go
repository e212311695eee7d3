package checkpoint_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"

	"github.com/enginetest/enginetest/internal/checkpoint"
)

func ExampleOpen() {
	dir, err := os.MkdirTemp("", "checkpoint")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	const config = `{"architectures": ["LlamaForCausalLM"], "vocab_size": 8, "hidden_size": 2, "intermediate_size": 4,
		"num_hidden_layers": 1, "num_attention_heads": 1}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		panic(err)
	}
	norm := checkpoint.Tensor{
		Name: "model.norm.weight", DType: checkpoint.BF16, Shape: []int{2},
		Data: binary.LittleEndian.AppendUint32(nil, 0x3f803f80),
	}
	if err := checkpoint.WriteSafetensors(filepath.Join(dir, "model.safetensors"), []checkpoint.Tensor{norm},
		nil); err != nil {
		panic(err)
	}

	c, err := checkpoint.Open(dir)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	w, err := c.Weight("model.norm.weight", c.Config.HiddenSize)
	fmt.Println(w.DType, w.Shape, len(w.Data), err)
	_, err = c.Weight("lm_head.weight", c.Config.VocabSize, c.Config.HiddenSize)
	fmt.Println(err != nil)
	// Output:
	// BF16 [2] 4 <nil>
	// true
}
