package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// DecodeJSON reads one JSON value: objects as *Dict, with their keys in order, arrays as []any,
// numbers as int64 or float64.
func DecodeJSON(data []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	v, err := decode(d, 0)
	if err != nil {
		if err.Error() == "unexpected end of JSON input" { // what Go 1.27's Decoder says instead of io.EOF
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	return v, nil
}

func decode(d *json.Decoder, depth int) (any, error) {
	if depth > maxNesting {
		return nil, fmt.Errorf("JSON nests deeper than %d", maxNesting)
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Number:
		if i, err := t.Int64(); err == nil {
			return i, nil
		}
		if !strings.ContainsAny(t.String(), ".eE") {
			return nil, fmt.Errorf("the integer %s is beyond 64 bits", t)
		}
		return t.Float64()
	case json.Delim:
		if t == '[' {
			return decodeArray(d, depth)
		}
		return decodeObject(d, depth)
	}
	return t, nil
}

func decodeArray(d *json.Decoder, depth int) (any, error) {
	list := []any{}
	for d.More() {
		v, err := decode(d, depth+1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	_, err := d.Token()
	return list, err
}

func decodeObject(d *json.Decoder, depth int) (any, error) {
	dict := &Dict{}
	for d.More() {
		k, err := d.Token()
		if err != nil {
			return nil, err
		}
		v, err := decode(d, depth+1)
		if err != nil {
			return nil, err
		}
		dict.Set(k.(string), v)
	}
	_, err := d.Token()
	return dict, err
}

// jsonWriter is Python's json.dumps.
type jsonWriter struct {
	r          *run
	b          strings.Builder
	ascii      bool
	sortKeys   bool
	indent     string
	newline    bool
	item, pair string // separators
}

const maxIndent = 1000

func toJSON(r *run, v any, a []any) any {
	w := &jsonWriter{
		r: r, ascii: truth(given(a[0], false)), sortKeys: truth(given(a[3], false)), item: ", ",
		pair: ": ",
	}
	switch n := given(a[1], nil).(type) {
	case nil:
	case string:
		if len(n) > maxIndent {
			fail(Bound, r.line, "tojson's indent has %d bytes, at most %d", len(n), maxIndent)
		}
		w.indent, w.newline = n, true
	default:
		width := r.integer(n, "tojson's indent")
		if width > maxIndent {
			fail(Bound, r.line, "tojson's indent is %d, at most %d", width, maxIndent)
		}
		w.indent, w.newline = strings.Repeat(" ", max(width, 0)), true
	}
	if w.newline {
		w.item = ","
	}
	if s := given(a[2], nil); s != nil {
		parts := r.items(s)
		if len(parts) != 2 {
			fail(Runtime, r.line, "tojson wants two separators")
		}
		w.item, w.pair = wantText(r, parts[0], "tojson"), wantText(r, parts[1], "tojson")
	}
	w.value(v, 0)
	return r.text(w.b.String())
}

func (w *jsonWriter) value(v any, depth int) {
	w.r.charge(1)
	if depth > maxNesting || w.b.Len() > maxBytes {
		fail(Bound, w.r.line, "the value is too big for tojson")
	}
	switch v := v.(type) {
	case nil:
		w.b.WriteString("null")
	case bool:
		w.b.WriteString(strconv.FormatBool(v))
	case int64:
		w.b.WriteString(strconv.FormatInt(v, 10))
	case float64:
		switch {
		case math.IsNaN(v):
			w.b.WriteString("NaN")
		case math.IsInf(v, 0):
			w.b.WriteString(map[bool]string{true: "Infinity", false: "-Infinity"}[v > 0])
		default:
			w.b.WriteString(floatRepr(v))
		}
	case string:
		w.text(v)
	case []any:
		w.array(v, depth)
	case tuple:
		w.array(v, depth)
	case *Dict:
		keys := v.keys
		if w.sortKeys {
			keys = slices.Sorted(slices.Values(keys))
		}
		w.group('{', '}', len(keys), depth, func(i int) {
			w.text(keys[i])
			w.b.WriteString(w.pair)
			w.value(v.values[keys[i]], depth+1)
		})
	default:
		fail(Runtime, w.r.line, "Object of type %s is not JSON serializable", typeName(v))
	}
}

func (w *jsonWriter) array(list []any, depth int) {
	w.group('[', ']', len(list), depth, func(i int) { w.value(list[i], depth+1) })
}

func (w *jsonWriter) group(open, end byte, n, depth int, item func(i int)) {
	w.b.WriteByte(open)
	line := func(depth int) {
		if w.newline && n > 0 {
			w.b.WriteByte('\n')
			w.b.WriteString(strings.Repeat(w.indent, depth))
		}
	}
	for i := range n {
		if i > 0 {
			w.b.WriteString(w.item)
		}
		line(depth + 1)
		item(i)
	}
	line(depth)
	w.b.WriteByte(end)
}

func (w *jsonWriter) text(s string) {
	w.r.charge(len(s) / 64)
	w.b.WriteByte('"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			w.b.WriteByte('\\')
			w.b.WriteRune(c)
		case c < 0x20 && strings.ContainsRune("\n\r\t\b\f", c):
			w.b.WriteString(map[rune]string{'\n': `\n`, '\r': `\r`, '\t': `\t`, '\b': `\b`, '\f': `\f`}[c])
		case c < 0x20, w.ascii && c > 0x7e && c < 0x10000:
			w.b.WriteString(`\u` + hex(c, 4))
		case w.ascii && c >= 0x10000:
			hi, lo := utf16.EncodeRune(c)
			w.b.WriteString(`\u` + hex(hi, 4) + `\u` + hex(lo, 4))
		default:
			w.b.WriteRune(c)
		}
	}
	w.b.WriteByte('"')
}
