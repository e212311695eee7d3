package harness

import (
	"context"
	"fmt"
	"reflect"
	"strings"
)

// With returns the same engine for another test, usually a subtest: its verbs fail that test, and
// not the one that owns the engine. The engine still ends with its owner.
//
//	r := harness.Start(t, openMyEngine)
//	for _, c := range cases {
//		t.Run(c.name, func(t *testing.T) { r.With(t).GenerateGreedy(c.prompt, 16) })
//	}
func (r *Runner) With(t TB) *Runner {
	bound := *r
	bound.t, bound.repro = t, reproduce(t.Name())
	return &bound
}

// WithContext returns the same engine with verbs that also end when ctx does. Stop and the teardown
// do not depend on it.
func (r *Runner) WithContext(ctx context.Context) *Runner {
	bound := *r
	inner, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(r.ctx, func() { cancel(context.Cause(r.ctx)) })
	r.t.Cleanup(func() {
		stop()
		cancel(nil)
	})
	bound.ctx = inner
	return &bound
}

// EngineOf returns the engine as what open returned. Do not keep it beyond the test: the teardown
// proves that nothing does.
func EngineOf[E Engine](r *Runner) E {
	r.t.Helper()
	e, ok := r.running().(E)
	if !ok {
		r.t.Fatalf("%s: EngineOf: the engine is a %T, not a %s", r.pkg, r.running(), reflect.TypeFor[E]())
	}
	return e
}

// capability returns the engine as the interface that a verb needs.
func capability[C any](r *Runner, verb string) C {
	r.t.Helper()
	e := r.running()
	c, ok := e.(C)
	if !ok {
		r.t.Fatalf("%s: this engine cannot %s: add %s to %T (%s)",
			r.pkg, verb, strings.Join(missing[C](e), " and "), e, reflect.TypeFor[C]())
	}
	return c
}

// missing lists the methods of the interface C that e lacks or has with another signature.
func missing[C any](e Engine) (methods []string) {
	want, has := reflect.TypeFor[C](), reflect.TypeOf(e)
	for i := range want.NumMethod() {
		m := want.Method(i)
		signature := m.Name + strings.TrimPrefix(m.Type.String(), "func")
		found, ok := has.MethodByName(m.Name)
		if !ok {
			methods = append(methods, signature)
		} else if bound := reflect.ValueOf(e).MethodByName(m.Name).Type(); bound != m.Type {
			methods = append(methods, fmt.Sprintf("%s (it has %s%s)", signature, found.Name,
				strings.TrimPrefix(bound.String(), "func")))
		}
	}
	return methods
}
