// Package chat renders Hugging Face chat templates: the part of Jinja that they use, with the
// settings that transformers gives it (trim_blocks, lstrip_blocks, the generation tag, break and
// continue, tojson in Python's form), over values that keep the order of their keys.
//
// A template is a program from a checkpoint, so it is bounded: its size, its nesting, its steps and
// what it prints. What it may not do in transformers (change a list, reach a private attribute) it
// may not do here; what this package lacks is refused by name, when the template is read where that
// can be seen.
//
// What it prints when it fails:
//
//	chat template tokenizer_config.json:3: the filter "groupby" is not supported
//	chat template chat_template.jinja:12: the template refused the conversation: roles must alternate
//	chat template chat_template.jinja:7: 'tools' is undefined
//	chat template chat_template.jinja:9: it does not end: over 4000000 steps
//	chat: no chat template: neither tokenizer_config.json nor chat_template.jinja in /models/base has one
package chat

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// The bounds of a template. Real ones have some 10 KB and take some 10,000 steps.
const (
	maxSource  = 1 << 20 // bytes
	maxNesting = 100     // of statements, of expressions, of macro calls
	maxChain   = 1000    // operators, filters or attributes behind each other
	maxSteps   = 4_000_000
	maxBytes   = 16 << 20 // of one text, and of the output
	maxItems   = 1 << 20  // of one list
)

// Kind says what is wrong with a template, or with what it was given.
type Kind int

// The kinds of errors.
const (
	Syntax      Kind = iota // not a template
	Unsupported             // Jinja has it, this package does not
	Runtime                 // an operation failed
	Raised                  // the template called raise_exception: the conversation is not one that it accepts
	Bound                   // too big, or it does not end
)

// Error is a template that cannot be read, or that failed.
type Error struct {
	Template string // its file, or its name
	Line     int
	Kind     Kind
	Reason   string
}

func (e *Error) Error() string {
	reason := e.Reason
	switch e.Kind {
	case Unsupported:
		reason += " is not supported"
	case Raised:
		reason = "the template refused the conversation: " + reason
	}
	return fmt.Sprintf("chat template %s:%d: %s", e.Template, e.Line, reason)
}

// Template is one that can be rendered, by any number of goroutines at once.
type Template struct {
	name string
	body []stmt
}

// Parse reads a template. The name is for errors.
func Parse(name, source string) (t *Template, err error) {
	defer catch(name, nil, &err)
	if len(source) > maxSource {
		fail(Bound, 1, "the template has %d bytes, at most %d", len(source), maxSource)
	}
	p := &parser{tokens: lex(source)}
	return &Template{name: name, body: p.template()}, nil
}

// Render runs the template with its variables, until its context ends. now is what strftime_now
// prints; nil is time.Now.
func (t *Template) Render(ctx context.Context, vars *Dict, now func() time.Time) (string, error) {
	if now == nil {
		now = time.Now
	}
	return t.render(&run{ctx: ctx, now: now}, vars)
}

func (t *Template) render(r *run, vars *Dict) (out string, err error) {
	defer catch(t.name, r, &err)
	root := newScope(nil)
	for _, k := range vars.Keys() {
		v, _ := vars.Get(k)
		root.vars[k] = v
	}
	r.execAll(t.body, newScope(root))
	return r.out.String(), nil
}

// failure is how an error leaves the parser and the interpreter; catch turns it into an Error.
type failure struct {
	kind   Kind
	line   int // 0: where the interpreter is
	reason string
}

func fail(kind Kind, line int, format string, args ...any) {
	panic(failure{kind, line, fmt.Sprintf(format, args...)})
}

// ended is how a rendering whose context has ended leaves the interpreter.
type ended struct{ err error }

// catch ends a panic of fail. Any other goes on.
func catch(name string, r *run, err *error) {
	switch v := recover().(type) {
	case nil:
	case failure:
		if v.line == 0 && r != nil {
			v.line = r.line
		}
		*err = &Error{Template: name, Line: v.line, Kind: v.kind, Reason: v.reason}
	case ended:
		*err = fmt.Errorf("chat template %s: %w", name, v.err)
	default:
		panic(v)
	}
}

// run is one rendering.
type run struct {
	ctx    context.Context
	out    strings.Builder
	now    func() time.Time
	line   int
	steps  int
	made   int // bytes of all texts and lists that operations made, and of what was printed
	depth  int // of macro calls
	nested int // values around those that are compared
}

// askEvery is the number of steps between two looks at the context.
const askEvery = 1 << 12

// charge counts work: one step for a node, one for 64 bytes or 8 items that an operation goes over.
func (r *run) charge(n int) {
	asked := r.steps / askEvery
	if r.steps += n; r.steps > maxSteps {
		fail(Bound, r.line, "it does not end: over %d steps", maxSteps)
	}
	if r.steps/askEvery != asked {
		if err := r.ctx.Err(); err != nil {
			panic(ended{err})
		}
	}
}

// write adds to the output.
func (r *run) write(s string) {
	r.charge(1 + len(s)/64)
	if r.out.Len()+len(s) > maxBytes {
		fail(Bound, r.line, "it prints more than %d bytes", maxBytes)
	}
	r.made += len(s)
	r.out.WriteString(s)
}

// capture runs f and returns what it printed.
func (r *run) capture(f func()) string {
	outer := r.out
	r.out = strings.Builder{}
	f()
	s := r.out.String()
	r.out = outer
	return s
}

// scope holds variables; a name is looked up from the innermost scope outwards.
type scope struct {
	vars  map[string]any
	outer *scope
}

func newScope(outer *scope) *scope { return &scope{vars: map[string]any{}, outer: outer} }

func (s *scope) get(name string) (any, bool) {
	for ; s != nil; s = s.outer {
		if v, ok := s.vars[name]; ok {
			return v, true
		}
	}
	return nil, false
}

// ErrNoTemplate is a checkpoint without a chat template: a base model.
var ErrNoTemplate = errors.New("chat: no chat template")
