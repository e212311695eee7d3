// Package gguf writes a Hugging Face checkpoint as a GGUF file, which llama.cpp and Ollama read, so that tests of their servers
// need no download.
package gguf

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/enginetest/enginetest/internal/checkpoint"
)

// The format (github.com/ggml-org/ggml/blob/master/docs/gguf.md): a header of keys and of tensor descriptions, then the tensors,
// each at a multiple of 32 bytes. Numbers are little-endian; a string has a 64-bit length before it.
const (
	typeUint32  uint32 = 4
	typeInt32   uint32 = 5
	typeFloat32 uint32 = 6
	typeBool    uint32 = 7
	typeString  uint32 = 8
	typeArray   uint32 = 9

	alignment = 32
	version   = uint32(3)
)

// Write writes the Llama checkpoint in dir, with its tokenizer and chat template, to a GGUF file at
// path. A checkpoint without a tokenizer gets a made-up vocabulary.
func Write(path, dir string) (err error) {
	c, err := checkpoint.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if a := c.Config.Architecture; a != "LlamaForCausalLM" {
		return fmt.Errorf("gguf: %s: architecture is %s, must be LlamaForCausalLM", dir, a)
	}
	tensors, err := tensorsOf(c)
	if err != nil {
		return err
	}
	keys, err := keysOf(c)
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := &writer{Writer: bufio.NewWriterSize(f, 1<<20)}
	w.header(keys, tensors)
	for _, t := range tensors {
		w.pad()
		w.bytes(t.data)
	}
	w.pad()
	return errors.Join(w.err, w.Flush())
}

type key struct {
	name  string
	value any
}

type writer struct {
	*bufio.Writer
	at  int64
	err error
}

func (w *writer) bytes(b []byte) {
	n, err := w.Write(b)
	w.at += int64(n)
	w.err = errors.Join(w.err, err)
}

func (w *writer) pad() { w.bytes(make([]byte, -w.at&(alignment-1))) }

// put writes numbers, and strings after their length.
func (w *writer) put(values ...any) {
	for _, v := range values {
		if s, ok := v.(string); ok {
			w.put(uint64(len(s)))
			w.bytes([]byte(s))
			continue
		}
		b, err := binary.Append(nil, binary.LittleEndian, v)
		w.err = errors.Join(w.err, err)
		w.bytes(b)
	}
}

func (w *writer) header(keys []key, tensors []tensor) {
	w.bytes([]byte("GGUF"))
	w.put(version, uint64(len(tensors)), uint64(len(keys)))
	for _, k := range keys {
		w.put(k.name)
		w.value(k.value)
	}
	at := int64(0)
	for _, t := range tensors {
		w.put(t.name, uint32(len(t.shape)))
		for i := range t.shape {
			w.put(uint64(t.shape[len(t.shape)-1-i])) // the fastest dimension first
		}
		w.put(t.kind, uint64(at))
		at += (int64(len(t.data)) + alignment - 1) / alignment * alignment
	}
}

func (w *writer) value(v any) {
	switch v := v.(type) {
	case uint32:
		w.put(typeUint32, v)
	case float32:
		w.put(typeFloat32, v)
	case bool:
		w.put(typeBool, v)
	case string:
		w.put(typeString, v)
	case []string:
		w.put(typeArray, typeString, uint64(len(v)))
		for _, s := range v {
			w.put(s)
		}
	case []float32:
		w.put(typeArray, typeFloat32, uint64(len(v)), v)
	case []int32:
		w.put(typeArray, typeInt32, uint64(len(v)), v)
	default:
		w.err = errors.Join(w.err, fmt.Errorf("gguf: a key of type %T", v))
	}
}
