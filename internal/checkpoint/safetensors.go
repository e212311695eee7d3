package checkpoint

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/bits"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
	"unsafe"
)

// Tensor is a tensor of a safetensors file. Its Data is the mapped file itself, row-major and
// little-endian: read-only (a write faults), good until the file is closed, and aligned to the
// element only if the file's writer saw to it.
type Tensor struct {
	Name  string
	DType DType
	Shape []int
	Data  []byte
	File  string // path of the file that holds it
}

// Mapping is a region of memory that holds a file.
type Mapping struct {
	File  string
	Bytes int64
	Addr  uintptr
}

// File is an open safetensors file.
type File struct {
	Path     string
	Metadata map[string]string
	tensors  map[string]Tensor
	data     []byte
	unmap    func() error
}

// maxHeader is the format's own limit, in bytes.
const maxHeader = 100_000_000

// OpenFile maps a safetensors file and checks all of its header: every tensor lies inside the file,
// has the bytes that its shape and type need, and together they cover the data exactly, without
// overlap or hole. The file must not shrink while it is open (the kernel would answer a later read
// with SIGBUS).
func OpenFile(path string) (*File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, &Error{File: path, Reason: "cannot open", Err: err}
	}
	if !info.Mode().IsRegular() { // asked before opening: a FIFO would wait for its writer
		return nil, &Error{File: path, Reason: "not a regular file", Got: info.Mode().String()}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, &Error{File: path, Reason: "cannot open", Err: err}
	}
	defer func() { _ = f.Close() }() // the mapping outlives it
	if info, err = f.Stat(); err != nil {
		return nil, &Error{File: path, Reason: "cannot stat", Err: err}
	}
	if info.Size() == 0 { // mmap would refuse
		return nil, tooShort(path, 0)
	}
	if info.Size() > math.MaxInt {
		return nil, &Error{
			File: path, Reason: "too large for this address space",
			Got: fmt.Sprintf("%d bytes", info.Size()),
		}
	}
	data, unmap, err := mapFile(f, int(info.Size()))
	if err != nil {
		return nil, &Error{File: path, Reason: "cannot map", Err: err}
	}
	st := &File{Path: path, data: data, unmap: unmap}
	if err := st.parse(); err != nil {
		_ = unmap()
		return nil, err
	}
	return st, nil
}

// Close unmaps the file. Using a tensor of it afterwards is the caller's fault.
func (f *File) Close() error {
	if f.unmap == nil {
		return nil
	}
	err := f.unmap()
	f.unmap, f.data, f.tensors = nil, nil, nil
	if err != nil {
		return &Error{File: f.Path, Reason: "cannot unmap", Err: err}
	}
	return nil
}

// Mapping says where the file lies in memory.
func (f *File) Mapping() Mapping {
	return Mapping{File: f.Path, Bytes: int64(len(f.data)), Addr: uintptr(unsafe.Pointer(unsafe.SliceData(f.data)))}
}

// Names lists the tensors, sorted.
func (f *File) Names() []string { return slices.Sorted(maps.Keys(f.tensors)) }

// Tensor finds a tensor.
func (f *File) Tensor(name string) (Tensor, bool) {
	t, ok := f.tensors[name]
	return t, ok
}

// entry is a tensor's line in the header: its data is body[begin:end].
type entry struct {
	tensor     Tensor
	begin, end uint64
}

func tooShort(path string, size int) error {
	return &Error{
		File: path, Reason: "truncated", Got: fmt.Sprintf("%d bytes", size),
		Want: "8 bytes of header length first",
	}
}

func (f *File) parse() error {
	if len(f.data) < 8 {
		return tooShort(f.Path, len(f.data))
	}
	n := binary.LittleEndian.Uint64(f.data)
	if n > maxHeader {
		return &Error{
			File: f.Path, Reason: "header too long (is it a safetensors file?)",
			Got: fmt.Sprintf("%d bytes", n), Want: fmt.Sprintf("at most %d", maxHeader),
		}
	}
	if have := uint64(len(f.data)) - 8; n > have {
		return &Error{
			File: f.Path, Reason: "truncated in its header",
			Got: fmt.Sprintf("%d bytes after the length", have), Want: fmt.Sprintf("%d", n),
		}
	}
	header, body := f.data[8:8+n], f.data[8+n:]
	if len(header) == 0 || header[0] != '{' {
		return &Error{
			File: f.Path, Reason: "header does not start with '{' (is it a safetensors file?)",
			Got: fmt.Sprintf("%.16q", header),
		}
	}
	if !utf8.Valid(header) {
		return &Error{File: f.Path, Reason: "header is not UTF-8"}
	}
	entries, err := f.parseHeader(header)
	if err != nil {
		return err
	}
	if err := f.checkLayout(entries, uint64(len(body))); err != nil {
		return err
	}
	f.tensors = make(map[string]Tensor, len(entries))
	for _, e := range entries {
		e.tensor.Data = body[e.begin:e.end:e.end]
		e.tensor.File = f.Path
		f.tensors[e.tensor.Name] = e.tensor
	}
	return nil
}

// parseHeader reads {"name": {"dtype": …, "shape": […], "data_offsets": [begin, end]}, …,
// "__metadata__": {…}}. It walks tokens, because encoding/json would let duplicate keys pass.
func (f *File) parseHeader(header []byte) ([]entry, error) {
	w := &walker{dec: json.NewDecoder(bytes.NewReader(header))}
	w.dec.UseNumber()
	bad := func(name string, err error) error {
		return &Error{File: f.Path, Tensor: name, Reason: "bad header", Err: err}
	}
	var entries []entry
	err := w.object(func(name string) error {
		if name == "__metadata__" {
			f.Metadata = map[string]string{}
			err := w.object(func(key string) (err error) {
				f.Metadata[key], err = w.string()
				return err
			})
			return err
		}
		e, err := w.entry(name)
		if err != nil {
			return bad(name, err)
		}
		if e.tensor.DType.rank() < 0 {
			return &Error{
				File: f.Path, Tensor: name, Field: "dtype", Reason: "unknown",
				Got: strconv.Quote(string(e.tensor.DType)), Want: knownTypes(),
			}
		}
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		if typed := (*Error)(nil); errors.As(err, &typed) {
			return nil, err
		}
		return nil, bad("", err)
	}
	if _, err := w.dec.Token(); err != io.EOF {
		return nil, bad("", fmt.Errorf("more after the closing brace"))
	}
	return entries, nil
}

// checkLayout verifies that the tensors fill the body, each with the bytes that it needs.
func (f *File) checkLayout(entries []entry, body uint64) error {
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end),
			strings.Compare(a.tensor.Name, b.tensor.Name))
	})
	var at uint64
	for _, e := range entries {
		t := e.tensor
		fail := func(reason, got, want string) error {
			return &Error{File: f.Path, Tensor: t.Name, Field: "data_offsets", Reason: reason, Got: got, Want: want}
		}
		offsets := fmt.Sprintf("[%d, %d]", e.begin, e.end)
		switch need, ok := byteSize(t.DType, t.Shape); {
		case e.end < e.begin:
			return fail("ends before it begins", offsets, "")
		case e.end > body:
			return fail("outside the file (truncated?)", offsets, fmt.Sprintf("at most %d bytes of data", body))
		case !ok:
			return fail("size overflows or is not whole bytes", fmt.Sprintf("%s %v", t.DType, t.Shape), "")
		case need != e.end-e.begin:
			return fail("size does not match the shape", fmt.Sprintf("%d bytes", e.end-e.begin),
				clip(fmt.Sprintf("%d for %s %v", need, t.DType, t.Shape)))
		case e.begin < at:
			return fail("overlaps the tensor before it", offsets, fmt.Sprintf("a begin of %d", at))
		case e.begin > at:
			return fail("leaves a hole before it", offsets, fmt.Sprintf("a begin of %d", at))
		}
		at = e.end
	}
	if at != body {
		return &Error{
			File: f.Path, Reason: "data that belongs to no tensor", Got: fmt.Sprintf("%d bytes", body),
			Want: fmt.Sprintf("%d", at),
		}
	}
	return nil
}

// byteSize is the size of a tensor in bytes; not ok when it overflows or is not a whole number of
// bytes.
func byteSize(d DType, shape []int) (uint64, bool) {
	n := d.bits()
	zero := false
	for _, dim := range shape {
		if dim < 0 {
			return 0, false
		}
		if dim == 0 {
			zero = true
			continue
		}
		hi, lo := bits.Mul64(n, uint64(dim))
		if hi != 0 {
			return 0, false
		}
		n = lo
	}
	if zero {
		return 0, true
	}
	return n / 8, n%8 == 0
}
