package grammar

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
)

// count reads a keyword that is a number of things; absent is its default.
func (s *object) count(keyword string, absent int, where string) (int, error) {
	v, ok := s.get(keyword)
	if !ok {
		return absent, nil
	}
	n, ok := v.(json.Number)
	if ok {
		r, fine := rational(n)
		ok = fine && r.IsInt() && r.Sign() >= 0 && r.Num().IsInt64()
		if ok && r.Num().Int64() <= maxCopies {
			return int(r.Num().Int64()), nil
		}
	}
	if ok {
		return 0, unsupported(where+"/"+keyword, "is %s, at most %d is supported", n, maxCopies)
	}
	return 0, invalidSchema(where+"/"+keyword, "is %s, must be an integer of at least 0", formatJSON(v))
}

// counts reads a pair of bounds.
func (s *object) counts(least, most, where string) (lo, hi int, err error) {
	if lo, err = s.count(least, 0, where); err != nil {
		return 0, 0, err
	}
	hi, err = s.count(most, -1, where)
	return lo, hi, err
}

// number writes integers and numbers.
func (w *schemaWriter) number(s *object, whole bool, where string) (expr, error) {
	var v interval
	for _, k := range keywords["number"] {
		value, ok := s.get(k)
		if !ok {
			continue
		}
		n, ok := value.(json.Number)
		if !ok {
			return nil, invalidSchema(where+"/"+k, "is %s, must be a number", formatJSON(value))
		}
		r, ok := rational(n)
		if !ok {
			return nil, unsupported(where+"/"+k, "is %s, which is too large", n)
		}
		switch k {
		case "multipleOf":
			if !whole || r.Cmp(big.NewRat(1, 1)) != 0 {
				return nil, unsupported(where+"/"+k, "is %s, only 1 of an integer is supported", n)
			}
		case "minimum", "exclusiveMinimum":
			if lo := atLeast(r, k != "minimum"); v.lo == nil || lo.Cmp(v.lo) > 0 {
				v.lo = lo
			}
		default:
			if hi := atMost(r, k != "maximum"); v.hi == nil || hi.Cmp(v.hi) < 0 {
				v.hi = hi
			}
		}
	}
	switch {
	case v == interval{} && whole:
		return w.parts.integer(), nil
	case v == interval{}:
		return w.parts.number(), nil
	case v.lo != nil && v.hi != nil && v.lo.Cmp(v.hi) > 0:
		return nil, unsupported(where, "bounds without a whole number between them")
	case whole:
		return v.wholes(), nil
	}
	return v.numbers(), nil
}

// text writes texts.
func (w *schemaWriter) text(s *object, where string) (expr, error) {
	lo, hi, err := s.counts("minLength", "maxLength", where)
	if err != nil {
		return nil, err
	}
	bounded := lo > 0 || hi >= 0
	pattern, hasPattern := s.get("pattern")
	format, hasFormat := s.get("format")
	switch {
	case hasPattern && hasFormat:
		return nil, unsupported(where+"/pattern", "pattern beside format")
	case (hasPattern || hasFormat) && bounded:
		return nil, unsupported(where, "pattern or format beside a length")
	case hasPattern:
		text, ok := pattern.(string)
		if !ok {
			return nil, invalidSchema(where+"/pattern", "must be a text")
		}
		return w.pattern(text, where+"/pattern")
	case hasFormat:
		name, _ := format.(string)
		text, ok := formats[name]
		if !ok {
			return nil, unsupported(where+"/format", "format %s is not supported; supported: %s", formatJSON(format),
				strings.Join(slices.Sorted(maps.Keys(formats)), ", "))
		}
		return w.pattern(text, where+"/format")
	case !bounded:
		return w.parts.text(), nil
	case hi >= 0 && hi < lo:
		return alt{}, nil
	}
	return quotedText(rep{w.parts.char(), lo, hi}), nil
}

func (w *schemaWriter) pattern(text, where string) (expr, error) {
	re, err := parseRegex(schemaKind, where, text)
	if err != nil {
		return nil, err
	}
	rw := regexWriter{kind: schemaKind, where: where, char: jsonRunes}
	e, err := rw.search(re)
	if err != nil {
		return nil, err
	}
	return quotedText(e), nil
}

const (
	dateFormat = `[0-9]{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)`
	timeFormat = `(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:0[0-9]|1[0-3]):[0-5][0-9])`
	byteFormat = `(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])`
)

// formats are the values of format that are supported, as regular expressions.
var formats = map[string]string{
	"date":      `^` + dateFormat + `$`,
	"time":      `^` + timeFormat + `$`,
	"date-time": `^` + dateFormat + `T` + timeFormat + `$`,
	"uuid":      `^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`,
	"ipv4":      `^` + byteFormat + `(?:\.` + byteFormat + `){3}$`,
	"email":     `^[a-z0-9]{1,20}(?:[._+-][a-z0-9]{1,20}){0,2}@[a-z0-9]{1,20}(?:-[a-z0-9]{1,20})?\.[a-z]{2,10}$`,
	"hostname":  `^[a-z0-9]{1,20}(?:-[a-z0-9]{1,20})?(?:\.[a-z0-9]{1,20}){0,3}\.[a-z]{2,10}$`,
}

// array writes arrays.
func (w *schemaWriter) array(s *object, where string) (expr, error) {
	lo, hi, err := s.counts("minItems", "maxItems", where)
	if err != nil {
		return nil, err
	}
	if unique, _ := s.get("uniqueItems"); unique == true && (hi < 0 || hi > 1) {
		return nil, unsupported(where+"/uniqueItems", "only supported with a maxItems of at most 1")
	}
	var prefix []expr
	if v, ok := s.get("prefixItems"); ok {
		list, ok := v.([]any)
		if !ok {
			return nil, invalidSchema(where+"/prefixItems", "must be a list")
		}
		for i, x := range list {
			e, err := w.schema(x, fmt.Sprintf("%s/prefixItems/%d", where, i))
			if err != nil {
				return nil, err
			}
			prefix = append(prefix, e)
		}
	}
	item := w.parts.any()
	if v, ok := s.get("items"); ok {
		if item, err = w.schema(v, where+"/items"); err != nil {
			return nil, err
		}
	}
	if hi >= 0 && hi < lo {
		return alt{}, nil
	}
	if len(prefix) == 0 {
		return w.parts.list(item, lo, hi), nil
	}
	return w.tuple(prefix, item, lo, hi), nil
}

// tuple writes an array that begins with items of its own.
func (w *schemaWriter) tuple(prefix []expr, item expr, lo, hi int) expr {
	// after(i) is what may follow i items.
	comma := seq{single(','), w.parts.blank()}
	most := -1
	if hi >= 0 {
		most = max(hi-len(prefix), 0)
	}
	var rest expr = rep{seq{comma, item}, max(lo-len(prefix), 0), most}
	for i := len(prefix) - 1; i >= 0; i-- {
		next := seq{prefix[i], rest}
		if i > 0 {
			next = append(seq{comma}, next...)
		}
		switch {
		case hi >= 0 && i >= hi:
			rest = seq{}
		case i >= lo:
			rest = w.rules.add(optional(next))
		default:
			rest = w.rules.add(next)
		}
	}
	return seq{single('['), w.parts.blank(), rest, w.parts.blank(), single(']')}
}

// properties writes objects.
func (w *schemaWriter) properties(s *object, where string) (expr, error) {
	lo, hi, err := s.counts("minProperties", "maxProperties", where)
	if err != nil {
		return nil, err
	}
	more := any(true)
	if v, ok := s.get("additionalProperties"); ok {
		more = v
	}
	props, err := w.members(s, more, where)
	if err != nil {
		return nil, err
	}
	if len(props) > 0 || more == false {
		return w.record(props, lo, hi, where)
	}
	if lo > 1 {
		return nil, unsupported(where+"/minProperties", "more than 1 for names that are free")
	}
	value, err := w.schema(more, where+"/additionalProperties")
	if err != nil {
		return nil, err
	}
	return w.parts.object(value, lo, hi), nil
}

// member is a property of an object.
type member struct {
	name     string
	value    ref
	required bool
}

// members lists the properties in the order of the schema, and then those that are only required.
func (w *schemaWriter) members(s *object, more any, where string) (list []member, err error) {
	props := &object{}
	if v, ok := s.get("properties"); ok {
		if props, ok = v.(*object); !ok {
			return nil, invalidSchema(where+"/properties", "must be an object")
		}
	}
	for _, name := range props.keys {
		e, err := w.schema(props.values[name], where+"/properties/"+name)
		if err != nil {
			return nil, err
		}
		list = append(list, member{name, w.rules.add(e), required(s, name)})
	}
	names := []any{}
	if v, ok := s.get("required"); ok {
		if names, ok = v.([]any); !ok {
			return nil, invalidSchema(where+"/required", "must be a list")
		}
	}
	for _, v := range names {
		name, ok := v.(string)
		if !ok {
			return nil, invalidSchema(where+"/required", "%s is no name", formatJSON(v))
		}
		if _, ok := props.get(name); ok {
			continue
		}
		e, err := w.schema(more, where+"/additionalProperties")
		if err != nil {
			return nil, err
		}
		list = append(list, member{name, w.rules.add(e), true})
		if props.values == nil {
			props = &object{values: map[string]any{}}
		}
		props.values[name] = true // a name may be listed twice
	}
	return list, nil
}

// record writes an object with certain properties.
func (w *schemaWriter) record(list []member, lo, hi int, where string) (expr, error) {
	sure := 0
	for _, m := range list {
		if m.required {
			sure++
		}
	}
	if lo > sure {
		return nil, unsupported(where+"/minProperties", "more than the required properties")
	}
	if hi >= 0 && hi < len(list) {
		return nil, unsupported(where+"/maxProperties", "fewer than the properties")
	}
	// later is what may follow at least one property, first what may follow none.
	var first, later expr = seq{}, seq{}
	for i := len(list) - 1; i >= 0; i-- {
		m := list[i]
		pair := seq{literal(formatJSON(m.name)), w.parts.colon(), m.value, later}
		next := seq{single(','), w.parts.blank(), pair}
		if m.required {
			first, later = pair, w.rules.add(next)
		} else {
			first, later = w.rules.add(alt{pair, first}), w.rules.add(alt{next, later})
		}
	}
	return seq{single('{'), w.parts.blank(), first, w.parts.blank(), single('}')}, nil
}
