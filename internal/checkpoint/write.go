package checkpoint

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"unicode/utf8"
)

// hugePage is the size of the writes, at multiples of it: the page cache then keeps the file in
// huge pages where it can (see adviseHuge).
const hugePage = 2 << 20

// WriteSafetensors writes tensors (their File is ignored) to a new file at path, byte for byte as
// the reference implementation does: wider types first, then by name, the header padded with spaces
// to 8 bytes. The same input gives the same file.
func WriteSafetensors(path string, tensors []Tensor, metadata map[string]string) (err error) {
	sorted := slices.Clone(tensors)
	slices.SortFunc(sorted, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(b.DType.rank(), a.DType.rank()), strings.Compare(a.Name, b.Name))
	})
	header, err := buildHeader(path, sorted, metadata)
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return &Error{File: path, Reason: "cannot write", Err: err}
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(path)
			err = &Error{File: path, Reason: "cannot write", Err: err}
		}
	}()
	w := bufio.NewWriterSize(f, hugePage)
	_, _ = w.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(header))))
	_, _ = w.Write(header)
	for _, t := range sorted {
		// less than the buffer: every write of the file is a whole one
		for part := range slices.Chunk(t.Data, hugePage/2) {
			_, _ = w.Write(part) // a bufio.Writer keeps its first error for Flush
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Close()
}

func buildHeader(path string, sorted []Tensor, metadata map[string]string) ([]byte, error) {
	var b bytes.Buffer
	sep := byte('{')
	put := func(key string, value any) {
		b.WriteByte(sep)
		sep = ','
		b.Write(encodeJSON(key))
		b.WriteByte(':')
		b.Write(encodeJSON(value))
	}
	if metadata != nil {
		put("__metadata__", metadata)
	}
	seen := map[string]bool{}
	at := 0
	for _, t := range sorted {
		size, ok := byteSize(t.DType, t.Shape)
		switch {
		case t.Name == "__metadata__" || seen[t.Name]:
			return nil, &Error{File: path, Tensor: t.Name, Reason: "name is taken"}
		case !utf8.ValidString(t.Name):
			return nil, &Error{File: path, Tensor: t.Name, Reason: "name is not UTF-8"}
		case t.DType.rank() < 0:
			return nil, &Error{
				File: path, Tensor: t.Name, Field: "dtype", Reason: "unknown", Got: string(t.DType),
				Want: knownTypes(),
			}
		case !ok || size != uint64(len(t.Data)):
			return nil, &Error{
				File: path, Tensor: t.Name, Reason: "data does not match the shape",
				Got: fmt.Sprintf("%d bytes", len(t.Data)), Want: fmt.Sprintf("%d for %s %v", size, t.DType, t.Shape),
			}
		}
		seen[t.Name] = true
		shape := t.Shape
		if shape == nil {
			shape = []int{}
		}
		put(t.Name, struct {
			DType   DType  `json:"dtype"`
			Shape   []int  `json:"shape"`
			Offsets [2]int `json:"data_offsets"`
		}{t.DType, shape, [2]int{at, at + len(t.Data)}})
		at += len(t.Data)
	}
	if sep == '{' {
		b.WriteByte('{')
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	return b.Bytes(), nil
}

// encodeJSON encodes strings, numbers and maps of them (keys sorted): it cannot fail on those.
func encodeJSON(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
