package checkpoint

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadsTheReferenceFile(t *testing.T) {
	f, err := OpenFile("testdata/reference.safetensors")
	require.NoError(t, err)
	require.Equal(t, []string{
		"a.f16", "b.bf16", "empty", "ids.i64", "mask", `odd "name" <é>`, "q.f8", "scalar",
		"z.f32",
	}, f.Names())
	require.Equal(t, map[string]string{"format": "pt"}, f.Metadata)
	for _, row := range []struct {
		name  string
		dtype DType
		shape []int
		data  []byte
	}{
		{"a.f16", F16, []int{3}, []byte{0, 0, 0, 0x3c, 0, 0x40}},
		{"b.bf16", BF16, []int{2, 3}, []byte{0, 0, 0x80, 0x3f, 0, 0x40, 0x40, 0x40, 0x80, 0x40, 0xa0, 0x40}},
		{"z.f32", F32, []int{2, 2}, []byte{0, 0, 0, 0, 0, 0, 0x80, 0x3f, 0, 0, 0, 0x40, 0, 0, 0x40, 0x40}},
		{"ids.i64", "I64", []int{2}, []byte{1, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255}},
		{"q.f8", "F8_E4M3", []int{5}, []byte{0, 0x38, 0x40, 0x44, 0x48}},
		{"scalar", F32, []int{}, []byte{0, 0, 0x20, 0x40}},
		{"empty", F32, []int{0, 7}, []byte{}},
	} {
		tensor, ok := f.Tensor(row.name)
		require.True(t, ok, row.name)
		require.Equal(t, row.dtype, tensor.DType, row.name)
		require.Equal(t, row.shape, tensor.Shape, row.name)
		require.Equal(t, row.data, tensor.Data, row.name)
	}
	m := f.Mapping()
	require.Equal(t, int64(663), m.Bytes)
	require.NotZero(t, m.Addr)
	require.NoError(t, f.Close())
	require.NoError(t, f.Close(), "a second Close has nothing to do")
}

func TestWritesTheReferenceFileByteForByte(t *testing.T) {
	const reference = "testdata/reference.safetensors"
	f, err := OpenFile(reference)
	require.NoError(t, err)
	defer f.Close()
	var tensors []Tensor
	for _, name := range f.Names() {
		tensor, _ := f.Tensor(name)
		tensors = append(tensors, tensor)
	}
	path := filepath.Join(t.TempDir(), "x.safetensors")
	require.NoError(t, WriteSafetensors(path, tensors, f.Metadata))
	want, err := os.ReadFile(reference)
	require.NoError(t, err)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestWriteRefusals(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	one := Tensor{Name: "a", DType: F32, Shape: []int{1}, Data: make([]byte, 4)}
	for _, row := range []struct {
		why     string
		tensors []Tensor
		says    string
	}{
		{"two of a name", []Tensor{one, one}, "name is taken"},
		{
			"the metadata's name",
			[]Tensor{{Name: "__metadata__", DType: F32, Shape: []int{1}, Data: make([]byte, 4)}},
			"name is taken",
		},
		{
			"a name that is not UTF-8",
			[]Tensor{{Name: "a\xff", DType: F32, Shape: []int{1}, Data: make([]byte, 4)}},
			"not UTF-8",
		},
		{
			"too little data",
			[]Tensor{{Name: "a", DType: F32, Shape: []int{2}, Data: make([]byte, 4)}},
			"got 4 bytes, want 8 for F32 [2]",
		},
		{"unknown type", []Tensor{{Name: "a", DType: "F99", Shape: []int{1}, Data: make([]byte, 4)}}, "got F99"},
		{"negative dimension", []Tensor{{Name: "a", DType: F32, Shape: []int{-1}}}, "does not match"},
	} {
		err := WriteSafetensors(path, row.tensors, nil)
		require.ErrorContains(t, err, row.says, row.why)
		require.NoFileExists(t, path, row.why)
	}
	require.NoError(t, WriteSafetensors(path, nil, nil), "no tensors at all")
	f, err := OpenFile(path)
	require.NoError(t, err)
	require.Empty(t, f.Names())
	require.NoError(t, f.Close())
}

// write makes a file of a header and n bytes of data.
func write(tb testing.TB, header string, n int) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "model.safetensors")
	data := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	data = append(append(data, header...), make([]byte, n)...)
	require.NoError(tb, os.WriteFile(path, data, 0o600))
	return path
}

func TestHostileFiles(t *testing.T) {
	const a = `"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}`
	for _, row := range []struct {
		why, header string
		data        int
		says        string
	}{
		{
			"data cut off", `{` + a + `}`, 7,
			`tensor "a": data_offsets: outside the file (truncated?): got [0, 8], want at most 7 bytes of data`,
		},
		{"data too long", `{` + a + `}`, 9, "data that belongs to no tensor: got 9 bytes, want 8"},
		{"data without tensors", `{}`, 1, "data that belongs to no tensor"},
		{
			"overlap", `{` + a + `,"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}`, 12,
			`tensor "b": data_offsets: overlaps the tensor before it: got [4, 12], want a begin of 8`,
		},
		{"the same bytes twice", `{` + a + `,"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8, "overlaps"},
		{
			"a hole", `{` + a + `,"b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}}`, 16,
			`leaves a hole before it: got [12, 16], want a begin of 8`,
		},
		{"two of a name", `{` + a + `,` + a + `}`, 8, `"a" appears twice`},
		{
			"two of a key", `{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8,
			`"dtype" appears twice`,
		},
		{
			"names that differ in escapes only", `{` + a + `,"\u0061":{"dtype":"F32","shape":[0],"data_offsets":[8,8]}}`,
			8, `"a" appears twice`,
		},
		{
			"shape does not fit", `{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}`, 8,
			"got 8 bytes, want 12 for F32 [3]",
		},
		{
			"shape overflows", `{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}}`, 8,
			"overflows",
		},
		{
			"shape overflows to the right size",
			`{"a":{"dtype":"F32","shape":[2305843009213693954,2],"data_offsets":[0,16]}}`, 16, "overflows",
		},
		{
			"negative dimension", `{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}`, 8,
			"-2 is not a whole number",
		},
		{
			"fractional dimension", `{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}`, 8,
			"2.0 is not a whole number",
		},
		{"offsets backwards", `{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}`, 8, "ends before it begins"},
		{
			"huge offsets", `{"a":{"dtype":"F32","shape":[2],"data_offsets":[9223372036854775800,9223372036854775807]}}`,
			8, "outside the file",
		},
		{"one offset", `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}}`, 8, "data_offsets has 1 numbers, not 2"},
		{"unknown type", `{"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}}`, 8, `dtype: unknown: got "F31"`},
		{"half a byte", `{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}`, 1, "not whole bytes"},
		{"missing key", `{"a":{"dtype":"F32","shape":[2]}}`, 8, "needs dtype, shape and data_offsets"},
		{"unknown key", `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}}`, 8, `unknown key "x"`},
		{"keys in capitals", `{"a":{"DTYPE":"F32","shape":[2],"data_offsets":[0,8]}}`, 8, `unknown key "DTYPE"`},
		{"a list for a tensor", `{"a":[]}`, 0, `where "{" should be`},
		{"metadata that is no text", `{"__metadata__":{"a":1}}`, 0, "1 where a string should be"},
		{"something behind the header", `{}{}`, 0, "more after the closing brace"},
		{"a header that is a list", `[]`, 0, "does not start with '{'"},
		{"a header that is empty", ``, 0, "does not start with '{'"},
		{"a header that stops", `{"a":`, 0, "bad header"},
		{"a header that is not UTF-8", "{\"\xff\":1}", 0, "not UTF-8"},
	} {
		t.Run(row.why, func(t *testing.T) {
			path := write(t, row.header, row.data)
			_, err := OpenFile(path)
			var e *Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, path, e.File)
			require.ErrorContains(t, err, row.says)
			t.Log(err)
		})
	}
}

func TestHostileLengths(t *testing.T) {
	for _, row := range []struct {
		why  string
		data []byte
		says string
	}{
		{"an empty file", nil, "truncated: got 0 bytes"},
		{"half a length", []byte{1, 2, 3}, "truncated: got 3 bytes"},
		{
			"a header longer than the file", append(binary.LittleEndian.AppendUint64(nil, 100), "{}"...),
			"truncated in its header: got 2 bytes after the length, want 100",
		},
		{
			"a header longer than the format allows", append(binary.LittleEndian.AppendUint64(nil, 1<<63), "{}"...),
			"header too long",
		},
		{"another format", []byte("GGUF\x03\x00\x00\x00 and so on"), "is it a safetensors file?"},
	} {
		path := filepath.Join(t.TempDir(), "model.safetensors")
		require.NoError(t, os.WriteFile(path, row.data, 0o600))
		_, err := OpenFile(path)
		require.ErrorContains(t, err, row.says, row.why)
	}
	_, err := OpenFile(t.TempDir())
	require.ErrorContains(t, err, "not a regular file")
}

func TestHugeNamesAreClipped(t *testing.T) {
	path := write(t, `{"`+strings.Repeat("x", 1<<20)+`":{"dtype":"F31","shape":[],"data_offsets":[0,0]}}`, 0)
	_, err := OpenFile(path)
	require.Error(t, err)
	require.Less(t, len(err.Error()), 2000)

	path = write(t, `{"a":{"dtype":"F32","shape":[1`+strings.Repeat(",1", 1<<16)+`],"data_offsets":[0,8]}}`, 8)
	_, err = OpenFile(path)
	require.ErrorContains(t, err, "size does not match the shape: got 8 bytes, want 4 for F32 [1 1 1")
	require.Less(t, len(err.Error()), 2000)
}

// Every cut of a good file is refused.
func TestEveryTruncation(t *testing.T) {
	whole, err := os.ReadFile("testdata/reference.safetensors")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "cut.safetensors")
	for n := range whole {
		require.NoError(t, os.WriteFile(path, whole[:n], 0o600))
		_, err := OpenFile(path)
		var e *Error
		require.ErrorAs(t, err, &e, "%d of %d bytes", n, len(whole))
	}
}

func FuzzSafetensors(f *testing.F) {
	whole, err := os.ReadFile("testdata/reference.safetensors")
	require.NoError(f, err)
	f.Add(whole)
	for _, header := range []string{
		`{}`, `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`,
		`{"__metadata__":{"format":"pt"}}`, `{"a":{"dtype":"F4","shape":[4,0],"data_offsets":[0,0]}}`,
	} {
		f.Add(append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header+"12345678"...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file := &File{Path: "f", data: data} // as OpenFile has it, but for the mapping
		if err := file.parse(); err != nil {
			var e *Error
			require.ErrorAs(t, err, &e)
			return
		}
		covered := 0
		var tensors []Tensor
		for _, name := range file.Names() {
			tensor, _ := file.Tensor(name)
			covered += len(tensor.Data)
			tensors = append(tensors, tensor)
		}
		require.Equal(t, len(data), 8+int(binary.LittleEndian.Uint64(data))+covered)
		_, err := buildHeader("f", tensors, file.Metadata)
		require.NoError(t, err, "what can be read can be written")
	})
}
