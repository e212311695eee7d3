package guard

import (
	"context"
	"testing"

	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/leakcheck"
)

type engine struct{ harness.Engine }

func open(context.Context) (engine, error) { return engine{}, nil }

func TestAfterFixture(t *testing.T) {
	harness.Start(t, open)
	leakcheck.Guard(t) // want `Guard comes after harness.Start`
}

func TestAfterCleanup(tt *testing.T) {
	tt.Cleanup(func() {})
	leakcheck.Guard(tt) // want `Guard comes after Cleanup`
}

func TestInSubtest(t *testing.T) {
	t.Run("sub", func(t *testing.T) {
		harness.Start(t, open)
		leakcheck.Guard(t) // want `Guard comes after harness.Start`
	})
}

func TestFirst(t *testing.T) {
	leakcheck.Guard(t)
	harness.Start(t, open)
	t.Cleanup(func() {})
}

func TestEachItsOwn(t *testing.T) {
	t.Run("a", func(t *testing.T) { harness.Start(t, open) })
	t.Run("b", func(t *testing.T) { leakcheck.Guard(t) })
}

func TestAnotherTest(t *testing.T) {
	var recorder testing.TB = t
	t.Cleanup(func() {})
	leakcheck.Guard(recorder)
}
