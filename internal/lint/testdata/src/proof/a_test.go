package proof

import (
	"context"
	"testing"

	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/leakcheck"
)

type engine struct{ harness.Engine }

func open(context.Context) (engine, error) { return engine{}, nil }

func TestNothingLeft(t *testing.T) {
	harness.Start(t, open, harness.WithoutDeviceMemory("no GPU"), harness.WithoutHost("parallel")) // want `leaves out WithoutDeviceMemory and WithoutHost`
}

func TestAllowsAll(t *testing.T) {
	leakcheck.Guard(t, leakcheck.Allow("*", "noise"))         // want `accepts every finding`
	harness.Start(t, open, harness.Allow("**", "more noise")) // want `accepts every finding`
}

func TestOneLeftOut(t *testing.T) {
	harness.Start(t, open, harness.WithoutHost("other tests run beside it"))
}

func TestNamed(t *testing.T) {
	leakcheck.Guard(t, leakcheck.Allow("goroutine: example.com/pool.(*worker).run created by *", "started once"))
	harness.Start(t, open)
}
