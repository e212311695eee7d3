package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// A body is read field by field, each within a bound, so that what is too big is refused when the
// bound is passed: most of it has not been sent by then.

const (
	freeBody   = 64 << 10 // bytes of a body that do not count towards MaxBodies
	fieldBytes = 1 << 20  // of a field without a bound of its own
	wordBytes  = 16 << 10 // of a stop string or a bad word
	jsonGrowth = 6        // a byte of text has at most six in JSON: \u0000
)

// body is a request's body while it is read.
type body struct {
	s     *Server
	r     io.Reader
	n     int64 // bytes so far
	taken int64 // of MaxBodies
	field string
	most  int64 // bytes of the field; negative: any number
	left  int64 // of them
	err   error // of the body, not of what it says
}

// openBody begins to read a body; done must be called.
func (s *Server) openBody(w http.ResponseWriter, r *http.Request) (b *body, done func(), err error) {
	if err := checkJSON(r); err != nil {
		return nil, nil, err
	}
	if r.ContentLength > s.options.MaxBody {
		w.Header().Set("Connection", "close")
		return nil, nil, s.bodyTooLarge()
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(s.options.ReadTimeout)) // a writer without deadlines is a test's
	b = &body{s: s, r: http.MaxBytesReader(w, r.Body, s.options.MaxBody)}
	return b, func() {
		if b.err == nil { // else the deadline ends the connection, if it is not over
			_ = rc.SetReadDeadline(time.Time{})
		}
		s.bodies.Add(-b.taken)
		if w, ok := w.(*writer); ok {
			w.large = b.n > freeBody
		}
	}, nil
}

func (s *Server) bodyTooLarge() error {
	return &apiError{
		status: http.StatusRequestEntityTooLarge, kind: "invalid_request_error", code: "request_too_large",
		message: fmt.Sprintf("the body is larger than %d bytes (MaxBody)", s.options.MaxBody),
	}
}

func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if b.left == 0 {
		b.err = b.fieldTooLarge()
		return 0, b.err
	}
	if b.left > 0 {
		p = p[:min(int64(len(p)), b.left)]
	}
	n, err := b.r.Read(p)
	b.n += int64(n)
	if b.left > 0 {
		b.left -= int64(n)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		b.err = b.failure(err)
		return n, b.err
	}
	if more := b.n - freeBody - b.taken; more > 0 {
		b.taken += more
		if b.s.bodies.Add(more) > b.s.options.MaxBodies {
			b.err = overloaded("the bodies of all requests that are being read have more than %d bytes (MaxBodies)",
				b.s.options.MaxBodies)
			return n, b.err
		}
	}
	return n, err
}

func (b *body) fieldTooLarge() error {
	switch b.field {
	case "":
		return invalid("", "invalid_json", "a field's name has more than %d bytes", b.most)
	case "prompt", "messages", "input", "text_1", "text_2", "documents", "query":
		return invalid(b.field, "context_length_exceeded",
			"it has more than %d bytes, which is more text than the model's context can hold", b.most)
	}
	return invalid(b.field, "value_too_large", "it has more than %d bytes", b.most)
}

// failure is a body that cannot be read.
func (b *body) failure(err error) error {
	var tooBig *http.MaxBytesError
	switch {
	case errors.As(err, &tooBig):
		return b.s.bodyTooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &apiError{
			status: http.StatusRequestTimeout, kind: "invalid_request_error", code: "request_timeout",
			message: fmt.Sprintf("the body has not arrived within %s (ReadTimeout): %d bytes have",
				b.s.options.ReadTimeout, b.n),
		}
	}
	return invalid("", "invalid_body", "the body cannot be read: %v", err)
}

// within bounds what is read from now on, for a field; bytes that have been read already do not
// count.
func (b *body) within(field string, n int64) { b.field, b.most, b.left = field, n, n }

// read returns the fields of the object in the body. bound says how many bytes a field may have.
// Lists in lists are read item by item, and a list that has too many is not read to its end.
func (b *body) read(bounds bounds) (map[string]json.RawMessage, error) {
	d := json.NewDecoder(b)
	d.UseNumber()
	b.within("", fieldBytes)
	fail := func(err error) error {
		if b.err != nil {
			return b.err
		}
		var api *apiError
		if errors.As(err, &api) {
			return err
		}
		return invalid("", "invalid_json", "the body is not a JSON object: %v", jsonError(err))
	}
	if t, err := d.Token(); err != nil {
		return nil, fail(err)
	} else if t != json.Delim('{') {
		return nil, fail(errors.New("it is another value"))
	}
	raw := map[string]json.RawMessage{}
	for d.More() {
		b.within("", fieldBytes)
		t, err := d.Token()
		if err != nil {
			return nil, fail(err)
		}
		name, _ := t.(string)
		if _, known := raw[name]; !known && len(raw) == maxFields {
			return nil, invalid("", "invalid_json", "the body has more than %d fields", maxFields)
		}
		if raw[name], err = b.value(d, name, bounds(name)); err != nil {
			return nil, fail(err)
		}
	}
	b.within("", fieldBytes)
	if _, err := d.Token(); err != nil {
		return nil, fail(err)
	}
	_, err := d.Token()
	if b.err != nil {
		return nil, b.err
	}
	if !errors.Is(err, io.EOF) {
		return nil, invalid("", "invalid_json", "more than one JSON value in the body")
	}
	return raw, nil
}

const maxFields = 1000

// bounds returns those of a field.
type bounds func(field string) bound

type bound struct {
	bytes  int64 // of a value, or of an item of a list; negative: any number
	items  int   // of a list; 0: the list is a value
	what   string
	option string            // that sets items
	ids    func(n int) error // refuses a list of n numbers
}

// value reads a field's value.
func (b *body) value(d *json.Decoder, name string, most bound) (v json.RawMessage, err error) {
	b.within(name, most.bytes)
	if most.items == 0 {
		return v, d.Decode(&v)
	}
	// A list cannot be told from another value before its first byte is read: it is the one after
	// the colon and white space, which only Token skips. Token of another value reads it whole.
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	if t != json.Delim('[') {
		if delim, ok := t.(json.Delim); ok {
			return nil, invalid(name, "invalid_type", "got %s, want a text or a list",
				map[json.Delim]string{'{': "an object"}[delim])
		}
		return json.Marshal(t)
	}
	list := bytes.NewBufferString("[")
	for n := 0; d.More(); n++ {
		b.within(name, most.bytes)
		var item json.RawMessage
		if err := d.Decode(&item); err != nil {
			return nil, err
		}
		if n > 0 {
			list.WriteByte(',')
		}
		list.Write(item)
		if isNumber(item) && most.ids != nil {
			if err := most.ids(n + 1); err != nil {
				return nil, err
			}
		} else if n == most.items {
			return nil, invalid(name, "too_many", "more than %d %s (%s)", most.items, most.what, most.option)
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	list.WriteByte(']')
	return list.Bytes(), nil
}

func isNumber(item json.RawMessage) bool {
	return len(item) > 0 && (item[0] == '-' || item[0] >= '0' && item[0] <= '9')
}
