package forkproc

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
)

// crosses reports why a value of type t would not come through JSON whole.
func crosses(t reflect.Type) error { return crossesAt(t, t.String(), map[reflect.Type]bool{}) }

func crossesAt(t reflect.Type, path string, seen map[reflect.Type]bool) error {
	if seen[t] || encodesItself(t) {
		return nil
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return crossesAt(t.Elem(), path, seen)
	case reflect.Map:
		if k := t.Key().Kind(); k != reflect.String && (k < reflect.Int || k > reflect.Uint64) &&
			!encodesItself(t.Key()) {
			return fmt.Errorf("%s has keys of type %v, which JSON cannot carry", path, t.Key())
		}
		return crossesAt(t.Elem(), path, seen)
	case reflect.Struct:
		for f := range t.Fields() {
			if !f.IsExported() && !f.Anonymous || f.Tag.Get("json") == "-" {
				return fmt.Errorf("%s.%s would be lost on the way from the child: JSON carries exported fields only",
					path, f.Name)
			}
			if err := crossesAt(f.Type, path+"."+f.Name, seen); err != nil {
				return err
			}
		}
	case reflect.Interface, reflect.Func, reflect.Chan, reflect.UnsafePointer, reflect.Complex64, reflect.Complex128:
		return fmt.Errorf("%s is of type %v, which does not come back from a child", path, t)
	}
	return nil
}

func encodesItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Unmarshaler]()) && p.Implements(reflect.TypeFor[json.Marshaler]()) ||
		p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) &&
			p.Implements(reflect.TypeFor[encoding.TextMarshaler]())
}
