package forkproc

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"reflect"
	"testing"
	"time"
)

// A Func is a function that runs in a process of its own without a test around it: from a Ginkgo
// spec, TestMain, a benchmark or a fuzz target. Register makes one.
//
// The child is a second run of this binary that calls the function from Main, so TestMain must call
// forkproc.Main. The argument and the value cross in JSON; nothing else does: variables that a test
// has set have their initial values in the child.
type Func[A, R any] struct{ name string }

// call says which function a child calls.
type call struct {
	Name string
	Arg  json.RawMessage
}

// functions has what Register was given, in a form without types. Written by package init only.
var functions = map[string]func(context.Context, json.RawMessage) (any, error){}

// Register makes f callable under a name that no other function of the binary has. Call it from a
// package-level variable:
//
//	var load = forkproc.Register("load", func(ctx context.Context, path string) (Stats, error) { ... })
func Register[A, R any](name string, f func(context.Context, A) (R, error)) *Func[A, R] {
	for _, t := range []reflect.Type{reflect.TypeFor[A](), reflect.TypeFor[R]()} {
		if err := crosses(t); err != nil {
			panic(fmt.Sprintf("forkproc: Register(%q): %v", name, err))
		}
	}
	if functions[name] != nil {
		panic(fmt.Sprintf("forkproc: Register(%q): the name is taken", name))
	}
	functions[name] = func(ctx context.Context, arg json.RawMessage) (any, error) {
		var a A
		if err := json.Unmarshal(arg, &a); err != nil {
			return nil, err
		}
		return f(ctx, a)
	}
	return &Func[A, R]{name}
}

// An Error says why a call has no value, or what its child left behind.
type Error struct {
	Func    string
	Outcome Outcome
	msg     string
}

func (e *Error) Error() string { return e.msg }

// Call calls the function in a child and returns its value. The error is an *Error when a child
// ran; with leftovers, the value is valid too. When ctx ends, the child and all that it started are
// killed. What the child prints goes to Output; the last lines are in the outcome.
func (f *Func[A, R]) Call(ctx context.Context, arg A, opts ...Option) (value R, err error) {
	b, err := json.Marshal(arg)
	if err != nil {
		return value, fmt.Errorf("forkproc: %s: the argument does not encode: %w", f.name, err)
	}
	cfg := newConfig(opts)
	c, err := newChild(f.name, "", time.Time{}, cfg)
	if err != nil {
		return value, fmt.Errorf("forkproc: %s: %w", f.name, err)
	}
	c.facts.call = true
	c.route.Call = &call{f.name, b}
	c.limits.quit = c.limits.child // there is no alarm of package testing before it
	o := c.run(ctx, c.print)
	if err := c.judgeCall(&o); err != nil {
		err.Func = f.name
		if o.Status != StatusPassed {
			return value, err
		}
		return value, errors.Join(err, json.Unmarshal(c.value, &value))
	}
	if c.value == nil {
		return value, nil // it died as expected
	}
	return value, json.Unmarshal(c.value, &value)
}

// Run is Call for a test, a benchmark or a fuzz target: it ends tb when there is no value, and
// prints there.
func (f *Func[A, R]) Run(tb testing.TB, arg A, opts ...Option) R {
	tb.Helper()
	value, err := f.Call(tb.Context(), arg, append([]Option{Output(tb.Output())}, opts...)...)
	if err != nil {
		tb.Fatal(err)
	}
	return value
}

// print hands on what the child prints.
func (c *child) print() {
	for e := range c.replay.root.events {
		if e.kind == "text" && c.cfg.output != nil {
			_, _ = io.WriteString(c.cfg.output, e.text+"\n")
		}
	}
}

// judgeCall is report for a call: nil when it ended as it should.
func (c *child) judgeCall(o *Outcome) *Error {
	msg := c.headline(o)
	if o.Note != "" {
		msg += "\n    " + o.Note
	}
	e := c.cfg.expect
	switch {
	case e != nil && !e.met(o):
		msg += "\n    expected: " + e.String()
	case len(o.Leftovers) > 0 && !c.cfg.keepQuiet:
		msg = c.leftBehind(o)
	case e != nil || o.Status == StatusPassed:
		return nil
	default:
		if o.Tail != "" {
			msg += "\n    its last output:\n" + o.Tail
		}
	}
	return &Error{Outcome: *o, msg: msg}
}

// serve calls the function and ends this process, which was started for it.
func (c *call) serve() {
	if !flag.Parsed() {
		flag.Parse()
	}
	f := functions[c.Name]
	if f == nil {
		fmt.Fprintf(os.Stderr, "forkproc: no function %q is registered: call Register from a package-level variable\n",
			c.Name)
		os.Exit(1)
	}
	note("begin")
	value, err := f(context.Background(), c.Arg)
	a := answer{Value: value}
	if err != nil {
		a = answer{Error: err.Error()}
	}
	if err := leaveValue(a); err != nil {
		_ = leaveValue(answer{Error: err.Error()})
	}
	note("body")
	tellMade()
	note("end")
	os.Exit(0)
}
