package cleanup

import (
	"context"
	"testing"
	"time"
)

type engine struct{}

func (engine) Shutdown(context.Context) error { return nil }

func use(context.Context) engine { return engine{} }

func TestDirect(t *testing.T) {
	e := engine{}
	t.Cleanup(func() {
		if err := e.Shutdown(t.Context()); err != nil { // want `the test's context is cancelled before its cleanups run`
			t.Error(err)
		}
	})
}

func TestDerived(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	e := use(ctx)
	t.Cleanup(func() {
		if err := e.Shutdown(ctx); err != nil { // want `the test's context is cancelled before its cleanups run`
			t.Error(err)
		}
	})
}

func TestBackground(t *testing.T) {
	e := use(t.Context())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := e.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	if err := e.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestWithoutCancel(t *testing.T) {
	e := engine{}
	t.Cleanup(func() {
		if err := e.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
}
