package chat

import (
	"fmt"
	"math"
	"math/big"
	"strings"
)

type expr interface {
	eval(r *run, s *scope) any
}

type (
	constant struct{ value any }
	name     struct {
		line int
		name string
	}
	listExpr struct {
		items []expr
		tuple bool
	}
	dictExpr struct {
		line         int
		keys, values []expr
	}
	condExpr struct{ cond, yes, no expr }
	logic    struct {
		or   bool
		a, b expr
	}
	not  struct{ e expr }
	sign struct {
		line     int
		negative bool
		e        expr
	}
	binary struct {
		line int
		op   string
		a, b expr
	}
	operand struct {
		op string
		e  expr
	}
	comparison struct {
		line  int
		first expr
		rest  []operand
	}
	attribute struct {
		line int
		e    expr
		name string
	}
	item struct {
		line  int
		e     expr
		index expr
	}
	sliceExpr struct{ parts [3]expr }
	call      struct {
		line int
		f    expr
		args arguments
	}
	filterExpr struct {
		line  int
		value expr
		name  string
		args  arguments
		f     builtin
	}
	testExpr struct {
		line  int
		value expr
		name  string
		args  arguments
		f     test
	}
	arguments struct {
		plain []expr
		names []string
		named []expr
	}
)

// callArgs are the values of arguments.
type callArgs struct {
	plain  []any
	names  []string
	named  []any
	caller *macro // of a call block
}

// function is one that Go provides.
type function func(r *run, a callArgs) any

func (e *constant) eval(*run, *scope) any { return e.value }

func (e *name) eval(r *run, s *scope) any {
	r.charge(1)
	if v, ok := s.get(e.name); ok {
		return v
	}
	if f, ok := globals[e.name]; ok {
		return f
	}
	return undefined{fmt.Sprintf("'%s' is undefined", e.name)}
}

func evalAll(r *run, s *scope, list []expr) []any {
	out := make([]any, len(list))
	for i, e := range list {
		out[i] = e.eval(r, s)
	}
	r.charge(1 + len(list))
	return out
}

func (e *listExpr) eval(r *run, s *scope) any {
	items := evalAll(r, s, e.items)
	if e.tuple {
		return tuple(items)
	}
	return items
}

func (e *dictExpr) eval(r *run, s *scope) any {
	d := &Dict{}
	for i, k := range e.keys {
		key, ok := k.eval(r, s).(string)
		if !ok {
			fail(Unsupported, e.line, "a dict key that is no text")
		}
		d.Set(key, e.values[i].eval(r, s))
	}
	r.charge(1 + len(e.keys))
	return d
}

func (e *condExpr) eval(r *run, s *scope) any {
	switch {
	case truth(e.cond.eval(r, s)):
		return e.yes.eval(r, s)
	case e.no != nil:
		return e.no.eval(r, s)
	}
	return undefined{"the inline if-expression evaluated to false and has no else"}
}

func (e *logic) eval(r *run, s *scope) any {
	r.charge(1)
	if v := e.a.eval(r, s); truth(v) == e.or {
		return v
	}
	return e.b.eval(r, s)
}

func (e *not) eval(r *run, s *scope) any { return !truth(e.e.eval(r, s)) }

func (e *sign) eval(r *run, s *scope) any {
	v := e.e.eval(r, s)
	r.line = e.line
	i, f, isInt, ok := number(r.defined(v))
	switch {
	case !ok:
		fail(Runtime, r.line, "a %s has no sign", typeName(v))
	case isInt && e.negative:
		return r.big64(new(big.Int).Neg(big.NewInt(i)))
	case isInt:
		return i
	case e.negative:
		return -f
	}
	return f
}

func (e *comparison) eval(r *run, s *scope) any {
	a := e.first.eval(r, s)
	for _, o := range e.rest {
		b := o.e.eval(r, s)
		r.line = e.line
		if !r.holds(a, o.op, b) {
			return false
		}
		a = b
	}
	return true
}

func (r *run) holds(a any, op string, b any) bool {
	switch op {
	case "==":
		return r.equal(a, b)
	case "!=":
		return !r.equal(a, b)
	case "in":
		return r.in(a, b)
	case "not in":
		return !r.in(a, b)
	}
	c := r.compare(op, a, b)
	switch op {
	case "<":
		return c == -1
	case "<=":
		return c == -1 || c == 0
	case ">":
		return c == 1
	}
	return c == 1 || c == 0
}

func (r *run) in(a, b any) bool {
	switch b := b.(type) {
	case string:
		sub, ok := a.(string)
		if !ok {
			fail(Runtime, r.line, "'in <string>' wants a string, not %s", typeName(r.defined(a)))
		}
		r.charge(len(b) / 64)
		return strings.Contains(b, sub)
	case *Dict:
		key, ok := a.(string)
		_, has := b.Get(key)
		return ok && has
	}
	for _, x := range r.items(b) {
		if r.equal(a, x) {
			return true
		}
	}
	return false
}

func (e *binary) eval(r *run, s *scope) any {
	a, b := e.a.eval(r, s), e.b.eval(r, s)
	r.line = e.line
	r.charge(1)
	if e.op == "~" {
		return r.text(r.str(a) + r.str(b))
	}
	return r.arithmetic(e.op, r.defined(a), r.defined(b))
}

func (r *run) arithmetic(op string, a, b any) any {
	ai, af, aInt, aNum := number(a)
	bi, bf, bInt, bNum := number(b)
	if aNum && bNum {
		if aInt && bInt && op != "/" && (op != "**" || bi >= 0) {
			return r.integers(op, ai, bi)
		}
		return r.floats(op, af, bf)
	}
	if op == "*" && aInt && !bNum {
		a, b, bi, bInt = b, a, ai, true
	}
	switch x := a.(type) {
	case string:
		y, isText := b.(string)
		switch {
		case op == "+" && isText:
			return r.text(x + y)
		case op == "*" && bInt:
			r.room(len(x), bi, maxBytes)
			return r.text(strings.Repeat(x, int(max(bi, 0))))
		case op == "%":
			fail(Unsupported, r.line, "formatting with %%")
		}
	case []any:
		if out, ok := r.listArithmetic(op, x, b, bi, bInt); ok {
			return out
		}
	case tuple:
		if y, ok := b.(tuple); ok {
			b = []any(y)
		} else if !bInt {
			b = nil
		}
		if out, ok := r.listArithmetic(op, x, b, bi, bInt); ok {
			return tuple(out)
		}
	}
	fail(Runtime, r.line, "'%s' does not go with %s and %s", op, typeName(a), typeName(b))
	return nil
}

func (r *run) listArithmetic(op string, x []any, b any, times int64, isInt bool) ([]any, bool) {
	y, isList := b.([]any)
	switch {
	case op == "+" && isList:
		return r.list(append(append(make([]any, 0, len(x)+len(y)), x...), y...)), true
	case op == "*" && isInt:
		r.room(len(x), times, maxItems)
		var out []any
		for range times {
			out = append(out, x...)
		}
		return r.list(out), true
	}
	return nil, false
}

// room refuses a repetition before it is made.
func (r *run) room(n int, times int64, most int) {
	if n > 0 && times > int64(most/n) || times > int64(most) {
		fail(Bound, r.line, "a repetition has more than %d parts", most)
	}
}

func (r *run) integers(op string, a, b int64) any {
	x, y, z := big.NewInt(a), big.NewInt(b), new(big.Int)
	switch op {
	case "+":
		return r.big64(z.Add(x, y))
	case "-":
		return r.big64(z.Sub(x, y))
	case "*":
		return r.big64(z.Mul(x, y))
	case "**":
		if b > 64 && a != 0 && a != 1 && a != -1 {
			fail(Unsupported, r.line, "an integer beyond 64 bits")
		}
		return r.big64(z.Exp(x, y, nil))
	}
	if b == 0 {
		fail(Runtime, r.line, "division by zero")
	}
	q, m := z.QuoRem(x, y, new(big.Int)) // Python rounds down, Go towards zero
	if m.Sign() != 0 && m.Sign() != y.Sign() {
		q.Sub(q, big.NewInt(1))
		m.Add(m, y)
	}
	if op == "//" {
		return r.big64(q)
	}
	return r.big64(m)
}

func (r *run) floats(op string, a, b float64) any {
	switch op {
	case "+":
		return a + b
	case "-":
		return a - b
	case "*":
		return a * b
	case "**":
		return r.power(a, b)
	}
	if b == 0 {
		fail(Runtime, r.line, "division by zero")
	}
	if op == "/" {
		return a / b
	}
	m := math.Mod(a, b)
	if m != 0 && (m < 0) != (b < 0) {
		m += b
	}
	if op == "%" {
		return m
	}
	return math.Floor((a - m) / b)
}

// power is Python's: where Go has an infinity, or no number, Python has an error or a complex
// number.
func (r *run) power(a, b float64) float64 {
	p := math.Pow(a, b)
	finite := !math.IsInf(a, 0) && !math.IsInf(b, 0)
	switch {
	case a == 0 && b < 0:
		fail(Runtime, r.line, "zero to a negative power")
	case finite && math.IsInf(p, 0):
		fail(Runtime, r.line, "the power of a number is too large")
	case finite && math.IsNaN(p) && !math.IsNaN(a) && !math.IsNaN(b):
		fail(Unsupported, r.line, "a complex number")
	}
	return p
}

func (e *call) eval(r *run, s *scope) any { return e.with(r, s, nil) }

// with calls, for a call block with its body.
func (e *call) with(r *run, s *scope, caller *macro) any {
	f := e.f.eval(r, s)
	a := e.args.eval(r, s)
	a.caller = caller
	r.line = e.line
	r.charge(1)
	if f, ok := f.(*macro); ok {
		return f.call(r, a)
	}
	if caller != nil {
		fail(Unsupported, r.line, "{%% call %%} of a %s", typeName(r.defined(f)))
	}
	switch f := r.defined(f).(type) {
	case function:
		return f(r, a)
	case method:
		return f.call(r, a)
	default:
		fail(Runtime, r.line, "a %s cannot be called", typeName(f))
	}
	return nil
}

func (a *arguments) eval(r *run, s *scope) callArgs {
	return callArgs{plain: evalAll(r, s, a.plain), names: a.names, named: evalAll(r, s, a.named)}
}

func (e *filterExpr) eval(r *run, s *scope) any { return e.apply(r, s, e.value.eval(r, s)) }

func (e *filterExpr) apply(r *run, s *scope, v any) any {
	a := e.args.eval(r, s)
	r.line = e.line
	r.charge(1)
	return e.f.run(r, e.name, v, a)
}

func (e *testExpr) eval(r *run, s *scope) any {
	v := e.value.eval(r, s)
	a := evalAll(r, s, e.args.plain)
	r.line = e.line
	return e.f.f(r, v, a)
}
