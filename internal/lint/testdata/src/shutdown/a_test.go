package shutdown

import (
	"context"
	"net/http"
	"testing"
)

type engine struct{}

func (*engine) Shutdown(context.Context) error { return nil }

type quiet struct{}

func (quiet) Shutdown() {}

func TestDropped(t *testing.T) {
	e := &engine{}
	t.Cleanup(func() {
		e.Shutdown(context.Background()) // want `Shutdown drops its error`
	})
	e.Shutdown(t.Context()) // want `Shutdown drops its error`
}

func TestDeferred(t *testing.T) {
	defer new(engine).Shutdown(t.Context()) // want `defer Shutdown drops its error`
	go new(engine).Shutdown(t.Context())    // want `go Shutdown drops its error`
}

func TestChecked(t *testing.T) {
	if err := new(engine).Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	_ = new(engine).Shutdown(t.Context())
	quiet{}.Shutdown()
	defer new(http.Server).Shutdown(t.Context())
}

func Example() {
	e := new(engine)
	defer e.Shutdown(context.Background())
}
