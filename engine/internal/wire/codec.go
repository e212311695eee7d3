package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"sync"
)

// Append encodes the value that v points to. A type that cannot cross (an interface, a channel, a
// struct with unexported fields) is an error.
func Append(b []byte, v any) ([]byte, error) {
	return appendValue(b, reflect.ValueOf(v).Elem())
}

func appendValue(b []byte, v reflect.Value) (_ []byte, err error) {
	switch v.Kind() {
	case reflect.Bool:
		if v.Bool() {
			return append(b, 1), nil
		}
		return append(b, 0), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return binary.AppendVarint(b, v.Int()), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return binary.AppendUvarint(b, v.Uint()), nil
	case reflect.Float32:
		return binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(v.Float()))), nil
	case reflect.Float64:
		return binary.LittleEndian.AppendUint64(b, math.Float64bits(v.Float())), nil
	case reflect.String:
		b = binary.AppendUvarint(b, uint64(v.Len()))
		return append(b, v.String()...), nil
	case reflect.Pointer:
		if v.IsNil() {
			return append(b, 0), nil
		}
		return appendValue(append(b, 1), v.Elem())
	case reflect.Struct:
		if err := exported(v.Type()); err != nil {
			return nil, err
		}
		for i := range v.NumField() {
			if b, err = appendValue(b, v.Field(i)); err != nil {
				return nil, err
			}
		}
		return b, nil
	case reflect.Slice:
		return appendSlice(b, v)
	case reflect.Map:
		if v.IsNil() {
			return append(b, 0), nil
		}
		b = binary.AppendUvarint(b, uint64(v.Len())+1)
		for it := v.MapRange(); it.Next(); {
			if b, err = appendValue(b, it.Key()); err != nil {
				return nil, err
			}
			if b, err = appendValue(b, it.Value()); err != nil {
				return nil, err
			}
		}
		return b, nil
	}
	return nil, fmt.Errorf("wire: a %s cannot be sent", v.Type())
}

// open are the struct types that have been found to have no unexported field: asking costs more
// than encoding.
var open sync.Map

func exported(t reflect.Type) error {
	if _, ok := open.Load(t); ok {
		return nil
	}
	for i := range t.NumField() {
		if f := t.Field(i); !f.IsExported() {
			return fmt.Errorf("wire: %s has the unexported field %s", t, f.Name)
		}
	}
	open.Store(t, true)
	return nil
}

// appendSlice writes the length plus one: zero is nil.
func appendSlice(b []byte, v reflect.Value) (_ []byte, err error) {
	if v.IsNil() {
		return append(b, 0), nil
	}
	b = binary.AppendUvarint(b, uint64(v.Len())+1)
	if v.Type().Elem().Kind() == reflect.Uint8 {
		return append(b, v.Bytes()...), nil
	}
	if v.Type().Elem().Size() == 0 {
		return nil, fmt.Errorf("wire: a %s cannot be sent: its elements are empty", v.Type())
	}
	if floats, ok := v.Interface().([]float32); ok { // many come at once
		for _, x := range floats {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
		}
		return b, nil
	}
	for i := range v.Len() {
		if b, err = appendValue(b, v.Index(i)); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// errDamaged is what a decoder says of bytes that no encoder made.
var errDamaged = errors.New("wire: damaged message")

// Decode reads the value that Append wrote into the one that v points to. Nothing of b is kept.
func Decode(b []byte, v any) error {
	d := decoder{b}
	if err := d.value(reflect.ValueOf(v).Elem()); err != nil {
		return err
	}
	if len(d.b) > 0 {
		return fmt.Errorf("%w: %d bytes too many", errDamaged, len(d.b))
	}
	return nil
}

type decoder struct{ b []byte }

func (d *decoder) value(v reflect.Value) error {
	switch v.Kind() {
	case reflect.Bool:
		n, err := d.uvarint(1)
		v.SetBool(n == 1)
		return err
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, size := binary.Varint(d.b)
		if size <= 0 || v.OverflowInt(n) {
			return fmt.Errorf("%w: no %s", errDamaged, v.Type())
		}
		d.b = d.b[size:]
		v.SetInt(n)
		return nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		n, err := d.uvarint(math.MaxUint64)
		if err == nil && v.OverflowUint(n) {
			err = fmt.Errorf("%w: no %s", errDamaged, v.Type())
		}
		v.SetUint(n)
		return err
	case reflect.Float32:
		b, err := d.bytes(4)
		if err == nil {
			v.SetFloat(float64(math.Float32frombits(binary.LittleEndian.Uint32(b))))
		}
		return err
	case reflect.Float64:
		b, err := d.bytes(8)
		if err == nil {
			v.SetFloat(math.Float64frombits(binary.LittleEndian.Uint64(b)))
		}
		return err
	case reflect.String:
		n, err := d.uvarint(math.MaxUint64)
		if err != nil {
			return err
		}
		b, err := d.bytes(n)
		v.SetString(string(b))
		return err
	case reflect.Pointer:
		n, err := d.uvarint(1)
		if n == 0 || err != nil {
			v.SetZero()
			return err
		}
		v.Set(reflect.New(v.Type().Elem()))
		return d.value(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			if err := d.value(v.Field(i)); err != nil {
				return err
			}
		}
		return nil
	case reflect.Slice:
		return d.slice(v)
	case reflect.Map:
		return d.mapping(v)
	}
	return fmt.Errorf("wire: a %s cannot be received", v.Type())
}

func (d *decoder) slice(v reflect.Value) error {
	n, err := d.length()
	if n < 0 || err != nil {
		v.SetZero()
		return err
	}
	if v.Type().Elem().Kind() == reflect.Uint8 {
		b, err := d.bytes(uint64(n))
		v.SetBytes(append(make([]byte, 0, n), b...))
		return err
	}
	if v.SetZero(); n == 0 {
		v.Set(reflect.MakeSlice(v.Type(), 0, 0)) // not nil
	}
	if floats, ok := v.Addr().Interface().(*[]float32); ok && n > 0 {
		b, err := d.bytes(4 * uint64(n))
		*floats = make([]float32, len(b)/4)
		for i := range *floats {
			(*floats)[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		}
		return err
	}
	v.Grow(n) // an allocation less than MakeSlice
	v.SetLen(n)
	for i := range n {
		if err := d.value(v.Index(i)); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) mapping(v reflect.Value) error {
	n, err := d.length()
	if n < 0 || err != nil {
		v.SetZero()
		return err
	}
	v.Set(reflect.MakeMapWithSize(v.Type(), n))
	for range n {
		key, val := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		if err := d.value(key); err != nil {
			return err
		}
		if err := d.value(val); err != nil {
			return err
		}
		v.SetMapIndex(key, val)
	}
	return nil
}

// length of a slice or map; -1 is nil. Every element takes a byte at least, so no damage asks for
// more memory than came.
func (d *decoder) length() (int, error) {
	n, err := d.uvarint(uint64(len(d.b)))
	return int(n) - 1, err
}

func (d *decoder) uvarint(limit uint64) (uint64, error) {
	n, size := binary.Uvarint(d.b)
	if size <= 0 || n > limit {
		return 0, fmt.Errorf("%w: no number up to %d", errDamaged, limit)
	}
	d.b = d.b[size:]
	return n, nil
}

func (d *decoder) bytes(n uint64) ([]byte, error) {
	if n > uint64(len(d.b)) {
		return nil, fmt.Errorf("%w: %d bytes missing", errDamaged, n-uint64(len(d.b)))
	}
	b := d.b[:n]
	d.b = d.b[n:]
	return b, nil
}
