package checkpoint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
)

// maxJSON bounds a JSON file of a checkpoint, except tokenizer.json, which is not read here. An
// index of a thousand shards is a few MiB.
const maxJSON = 64 << 20

// fields reads the fields of a JSON object and keeps the first error. A field that is null counts
// as absent where not said otherwise.
type fields struct {
	file   string
	prefix string // "rope_parameters." when the object is that field's
	raw    map[string]json.RawMessage
	err    *error
}

func readJSON(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, &Error{File: path, Reason: "cannot read", Err: err}
	}
	if !info.Mode().IsRegular() {
		return nil, &Error{File: path, Reason: "not a regular file", Got: info.Mode().String()}
	}
	if info.Size() > maxJSON {
		return nil, &Error{
			File: path, Reason: "too large", Got: fmt.Sprintf("%d bytes", info.Size()),
			Want: fmt.Sprintf("at most %d", maxJSON),
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, &Error{File: path, Reason: "cannot read", Err: err}
	}
	return data, nil
}

func parseFields(file string, data []byte) (*fields, error) {
	f := &fields{file: file, err: new(error)}
	if err := json.Unmarshal(data, &f.raw); err != nil {
		return nil, &Error{File: file, Reason: "not a JSON object", Err: err}
	}
	if f.raw == nil { // the file says null
		return nil, &Error{File: file, Reason: "not a JSON object", Got: "null"}
	}
	return f, nil
}

func (f *fields) fail(key, reason, got, want string) {
	if *f.err == nil {
		*f.err = &Error{File: f.file, Field: f.prefix + key, Reason: reason, Got: got, Want: want}
	}
}

// has reports whether the key is there and not null; isNull, whether it is there and null.
func (f *fields) has(key string) bool { return len(f.raw[key]) > 0 && !f.isNull(key) }

func (f *fields) isNull(key string) bool { return bytes.Equal(f.raw[key], []byte("null")) }

// decode reads a present field into v; want describes the type.
func (f *fields) decode(key string, v any, want string) bool {
	if !f.has(key) {
		return false
	}
	if err := json.Unmarshal(f.raw[key], v); err != nil {
		f.fail(key, "wrong type", clip(string(f.raw[key])), want)
		return false
	}
	return true
}

// integer reads a number in [lo, hi]. Python writes some integers as 4096.0: those are taken.
func (f *fields) integer(key string, def, lo, hi int) int {
	var n float64
	if !f.decode(key, &n, "an integer") {
		return def
	}
	if n != math.Trunc(n) || n < float64(lo) || n > float64(hi) {
		f.fail(key, "out of range", string(f.raw[key]), fmt.Sprintf("an integer in [%d, %d]", lo, hi))
		return def
	}
	return int(n)
}

// required is integer for a field without a default.
func (f *fields) required(key string, hi int) int {
	if !f.has(key) {
		f.fail(key, "missing", "", fmt.Sprintf("an integer in [1, %d]", hi))
		return 1
	}
	return f.integer(key, 1, 1, hi)
}

// number reads a float in [lo, hi].
func (f *fields) number(key string, def, lo, hi float64) float64 {
	n := def
	if f.decode(key, &n, "a number") && (n < lo || n > hi) {
		f.fail(key, "out of range", string(f.raw[key]), fmt.Sprintf("a number in [%g, %g]", lo, hi))
		return def
	}
	return n
}

func (f *fields) bool(key string) (v bool) {
	f.decode(key, &v, "true or false")
	return v
}

func (f *fields) string(key, def string) string {
	f.decode(key, &def, "a string")
	return def
}

func (f *fields) strings(key string) []string {
	var list []string
	f.decode(key, &list, "a list of strings")
	return list
}

// ids reads a token id or a list of them, in [0, vocab). vocab 0 leaves it unbounded.
func (f *fields) ids(key string, vocab int) []int32 {
	if !f.has(key) {
		return nil
	}
	if vocab <= 0 {
		vocab = math.MaxInt32
	}
	want := fmt.Sprintf("a token id in [0, %d), or a list of them", vocab)
	var list []*float64
	if f.raw[key][0] != '[' {
		list = make([]*float64, 1)
		if json.Unmarshal(f.raw[key], &list[0]) != nil {
			f.fail(key, "wrong type", clip(string(f.raw[key])), want)
			return nil
		}
	} else if !f.decode(key, &list, want) {
		return nil
	}
	ids := make([]int32, 0, len(list))
	for _, n := range list {
		if n == nil {
			f.fail(key, "wrong type", clip(string(f.raw[key])), want)
			return nil
		}
		if *n != math.Trunc(*n) || *n < 0 || *n >= float64(vocab) {
			f.fail(key, "out of range", strconv.FormatFloat(*n, 'g', -1, 64), want)
			return nil
		}
		ids = append(ids, int32(*n))
	}
	return ids
}

// object reads a nested object; nil when it is absent, null or empty.
func (f *fields) object(key string) *fields {
	sub := &fields{file: f.file, prefix: f.prefix + key + ".", err: f.err}
	if !f.decode(key, &sub.raw, "an object") || len(sub.raw) == 0 {
		return nil
	}
	return sub
}

func oneOf(names []string) string { return "one of " + strings.Join(names, ", ") }
