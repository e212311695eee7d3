package grammar

import (
	"slices"
)

// disjoint refuses the schemas of a oneOf that one value could be valid for: their types must
// differ, or their values, or those of a property that both require.
func (w *schemaWriter) disjoint(list []any, where string) error {
	for i, a := range list {
		for _, b := range list[i+1:] {
			if !w.differ(a, b, where, 0) {
				return unsupported(where, "schemas that are not seen to exclude each other: by type, const, enum or a "+
					"required property with them")
			}
		}
	}
	return nil
}

func (w *schemaWriter) differ(a, b any, where string, depth int) bool {
	x, y := w.follow(a, where), w.follow(b, where)
	if x == nil || y == nil || depth > 10 {
		return false
	}
	if typesDiffer(x, y) {
		return true
	}
	if v, ok := constants(x); ok {
		if u, ok := constants(y); ok {
			return !slices.ContainsFunc(v, func(s string) bool { return slices.Contains(u, s) })
		}
	}
	p, _ := x.values["properties"].(*object)
	q, _ := y.values["properties"].(*object)
	if p == nil || q == nil || !onlyObjects(x) || !onlyObjects(y) {
		return false
	}
	for _, name := range p.keys {
		if _, ok := q.get(name); ok && required(x, name) && required(y, name) &&
			w.differ(p.values[name], q.values[name], where, depth+1) {
			return true
		}
	}
	return false
}

// follow returns a schema behind its references; nil when it is none.
func (w *schemaWriter) follow(s any, where string) *object {
	for range 20 {
		o, ok := s.(*object)
		if !ok {
			return nil
		}
		pointer, ok := o.values["$ref"].(string)
		if !ok {
			return o
		}
		var err error
		if s, err = w.resolve(pointer, where); err != nil {
			return nil
		}
	}
	return nil
}

// typeNames are the types that a schema names; nil when it names none.
func typeNames(o *object) (names []string) {
	switch t := o.values["type"].(type) {
	case string:
		return []string{t}
	case []any:
		for _, v := range t {
			if s, ok := v.(string); ok {
				names = append(names, s)
			}
		}
	}
	return names
}

func typesDiffer(x, y *object) bool {
	a, b := typeNames(x), typeNames(y)
	if a == nil || b == nil {
		return false
	}
	for _, s := range a {
		for _, t := range b {
			if s == t || s == "integer" && t == "number" || s == "number" && t == "integer" {
				return false
			}
		}
	}
	return true
}

func onlyObjects(o *object) bool {
	names := typeNames(o)
	return len(names) == 1 && names[0] == "object"
}

// constants are the values that a schema allows, when it lists them. Numbers are left out: 1 and
// 1.0 are one value.
func constants(o *object) (values []string, ok bool) {
	list, ok := o.values["enum"].([]any)
	if v, found := o.get("const"); found {
		list, ok = []any{v}, true
	}
	for _, v := range list {
		switch v.(type) {
		case string, bool, nil:
			values = append(values, formatJSON(v))
		default:
			return nil, false
		}
	}
	return values, ok
}

func required(o *object, name string) bool {
	list, _ := o.values["required"].([]any)
	return slices.Contains(list, any(name))
}
