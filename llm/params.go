package llm

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"sync"
)

// Param describes one field of [SamplingParams].
type Param struct {
	Field string // in Go: "TopP"
	Name  string // on the wire: "top_p"
	Usage string // one line, for a flag
	Unset string // what 0 means in Go, where it is "not given"; on the wire 0 is out of range. "" otherwise

	index   int
	bounded bool
	lo, hi  float64
	loOpen  bool // lo itself is not allowed
	hiOpen  bool
	whole   bool // an integer
	zero    bool // 0 is allowed besides the range
	note    string
}

// Params lists every sampling parameter that can be written down, in the order of the fields:
// LogitsProcessors cannot.
func Params() []Param { return params() }

var params = sync.OnceValue(func() (list []Param) {
	t := reflect.TypeFor[SamplingParams]()
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Tag.Get("json") == "-" {
			continue
		}
		p := Param{
			Field: f.Name, Name: f.Tag.Get("json"), Usage: f.Tag.Get("usage"), Unset: f.Tag.Get("unset"),
			index: i, whole: f.Type.Kind() == reflect.Int,
		}
		if r := f.Tag.Get("range"); r != "" {
			p.parse(r)
		}
		zero := f.Tag.Get("zero")
		p.zero = p.Unset != "" || zero != ""
		switch note := f.Tag.Get("note"); {
		case note != "":
			p.note = " (" + note + ")"
		case p.zero:
			p.note = fmt.Sprintf(" (0 is %s%s)", p.Unset, zero)
		}
		list = append(list, p)
	}
	return list
})

// parse reads an interval: "(0,1]".
func (p *Param) parse(s string) {
	lo, hi, _ := strings.Cut(s[1:len(s)-1], ",")
	var err, err2 error
	p.lo, err = strconv.ParseFloat(lo, 64)
	p.hi, err2 = strconv.ParseFloat(hi, 64)
	if err != nil || err2 != nil {
		panic("llm: bad range " + s + " of " + p.Field)
	}
	p.bounded, p.loOpen, p.hiOpen = true, s[0] == '(', s[len(s)-1] == ')'
}

// Value returns the field that p describes; it can be set.
func (p Param) Value(s *SamplingParams) reflect.Value {
	return reflect.ValueOf(s).Elem().Field(p.index)
}

// Bound returns the range in words, "in (0, 1]", without what 0 stands for; "" without a range.
func (p Param) Bound() string {
	if !p.bounded {
		return ""
	}
	open, end := "[", "]"
	if p.loOpen {
		open = "("
	}
	if p.hiOpen {
		end = ")"
	}
	switch {
	case math.IsInf(p.hi, 1) && p.whole:
		return fmt.Sprintf("at least %g", p.lo)
	case math.IsInf(p.hi, 1) && p.loOpen:
		return fmt.Sprintf("finite and > %g", p.lo)
	case math.IsInf(p.hi, 1):
		return fmt.Sprintf("finite and ≥ %g", p.lo)
	}
	return fmt.Sprintf("in %s%g, %g%s", open, p.lo, p.hi, end)
}

// Check returns a [*ParamError] when the field of s is outside its range.
func (p Param) Check(s *SamplingParams) error {
	if !p.bounded {
		return nil
	}
	field := p.Value(s)
	var v float64
	if p.whole {
		v = float64(field.Int())
	} else {
		v = field.Float()
	}
	if p.zero && v == 0 || p.contains(v) {
		return nil
	}
	return &ParamError{Field: p.Field, Value: field.Interface(), Bound: p.Bound() + p.note}
}

func (p Param) contains(v float64) bool {
	return v >= p.lo && v <= p.hi && !(p.loOpen && v == p.lo) && !(p.hiOpen && v == p.hi) && !math.IsInf(v, 0)
}

// Check returns a [*ParamError] for the first number that is outside its range. Bounds that depend
// on the model, such as token ids and numbers of log-probabilities, are the engine's to check.
func (s *SamplingParams) Check() error {
	for _, p := range Params() {
		if err := p.Check(s); err != nil {
			return err
		}
	}
	for i, p := range s.LogitsProcessors {
		if p == nil {
			return &ParamError{Field: fmt.Sprintf("LogitsProcessors[%d]", i), Value: nil, Bound: "a function"}
		}
	}
	for id, b := range s.LogitBias {
		if math.IsNaN(b) || math.IsInf(b, 0) {
			return &ParamError{
				Field: fmt.Sprintf("LogitBias[%d]", id), Value: b,
				Bound: "finite (it is clamped to ±100)",
			}
		}
	}
	if err := s.LogprobsMode.check(); err != nil {
		return err
	}
	return s.StructuredOutputs.check()
}
