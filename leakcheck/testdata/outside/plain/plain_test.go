package plain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"guard"

	"github.com/enginetest/enginetest/leakcheck"
)

// TestClean_documented is the package comment of leakcheck.
func TestClean_documented(t *testing.T) {
	leaks := leakcheck.Guard(t)
	e := guard.Open()
	leaks.Track("engine", e)
	t.Cleanup(e.Close)
	e.Use()
}

func TestClean_deferred(t *testing.T) {
	leaks := leakcheck.Guard(t)
	e := guard.Open()
	defer e.Close()
	leaks.Track("engine", e)
}

func TestClean_hundredCleanups(t *testing.T) {
	leaks := leakcheck.Guard(t)
	for i := range 100 {
		e := guard.Open()
		leaks.Track(fmt.Sprint("engine/", i), e)
		t.Cleanup(e.Close)
		t.Cleanup(func() { e.Use() })
	}
}

func TestClean_nested(t *testing.T) {
	leaks := leakcheck.Guard(t)
	e := guard.Open()
	leaks.Track("engine", e)
	t.Cleanup(e.Close)
	t.Run("sub", func(t *testing.T) {
		leaks := leakcheck.Guard(t)
		own := guard.Open()
		leaks.Track("engine", own)
		t.Cleanup(own.Close)
		t.Cleanup(func() { e.Use() })
		t.Run("sub", func(t *testing.T) {
			leaks := leakcheck.Guard(t)
			own := guard.Open()
			leaks.Track("engine", own)
			t.Cleanup(own.CloseSlowly)
		})
	})
}

func TestClean_parallel(t *testing.T) {
	leaks := leakcheck.Guard(t)
	shared := guard.Open()
	leaks.Track("shared", shared)
	t.Cleanup(shared.Close)
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			leaks := leakcheck.Guard(t)
			e := guard.Open()
			leaks.Track("engine", e)
			t.Cleanup(e.Close)
			t.Cleanup(func() { shared.Use() })
			for j := range 2 {
				t.Run(fmt.Sprint(j), func(t *testing.T) {
					t.Parallel()
					t.Cleanup(func() { e.Use() })
				})
			}
		})
	}
}

type key struct{}

func TestClean_contextAndTempDir(t *testing.T) {
	leaks := leakcheck.Guard(t)
	e := guard.Open()
	leaks.Track("engine", e)
	t.Cleanup(e.Close)
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, e))
	defer cancel()
	child, stop := context.WithCancelCause(ctx)
	t.Cleanup(func() { stop(nil) })
	context.AfterFunc(child, func() { e.Use() })
	if err := os.WriteFile(filepath.Join(t.TempDir(), "f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GUARD_TEST", "1")
}

// TestClean_core has no Guard.
func TestClean_core(t *testing.T) {
	var refs []*leakcheck.Ref
	t.Cleanup(func() {
		if err := leakcheck.Released(context.Background(), refs...); err != nil {
			t.Error(err)
		}
	})
	e := guard.Open()
	refs = append(refs, leakcheck.Track("engine", e))
	t.Cleanup(e.Close)
}

func TestClean_withoutPaths(t *testing.T) {
	leaks := leakcheck.Guard(t, leakcheck.WithoutPaths())
	e := guard.Open()
	leaks.Track("engine", e)
	t.Cleanup(e.Close)
}

func TestSkip_deferred(t *testing.T) {
	leaks := leakcheck.Guard(t)
	e := guard.Open()
	defer e.Close()
	leaks.Track("engine", e)
	if e.Use() > 0 {
		t.Skip("not on this machine")
	}
	e.Use()
}

func TestSkip_withoutPaths(t *testing.T) {
	leaks := leakcheck.Guard(t, leakcheck.WithoutPaths())
	e := guard.Open()
	defer e.Close()
	leaks.Track("engine", e)
	if e.Use() > 0 {
		t.Skip("not on this machine")
	}
	e.Use()
}

func TestSkip_inParallelSubtest(t *testing.T) {
	for i := range 3 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			leaks := leakcheck.Guard(t)
			e := guard.Open()
			defer func() { e.Close() }()
			leaks.Track("engine", e)
			t.Cleanup(func() { e.Use() })
			if i < 9 {
				t.SkipNow()
			}
			e.Use()
		})
	}
	t.SkipNow()
}

func TestFail_deferred(t *testing.T) {
	leaks := leakcheck.Guard(t)
	e := guard.Open()
	defer e.Close()
	leaks.Track("engine", e)
	if e.Use() > 0 {
		t.Fatal("wrong answer")
	}
	e.Use()
}

func TestFail_deepInAHelper(t *testing.T) {
	leaks := leakcheck.Guard(t)
	e := guard.Open()
	leaks.Track("engine", e)
	t.Cleanup(e.Close)
	for i := range 10 {
		defer func() { e.Use() }()
		helper(t, e, i)
	}
}

//go:noinline
func helper(t *testing.T, e *guard.Engine, i int) {
	defer e.Use()
	if i == 9 {
		t.FailNow()
	}
}

func TestFail_inACleanup(t *testing.T) {
	leaks := leakcheck.Guard(t)
	e := guard.Open()
	leaks.Track("engine", e)
	t.Cleanup(e.Close)
	t.Cleanup(func() {
		if e.Use() > 0 {
			t.FailNow()
		}
		e.Use()
	})
}

// TestLeak_skipped: what a skipped test leaves in a global is still its leak.
func TestLeak_skipped(t *testing.T) {
	leaks := leakcheck.Guard(t)
	e := guard.Open()
	defer e.Close()
	guard.Keep(e)
	leaks.Track("engine", e)
	if e.Use() > 0 {
		t.Skip("not on this machine")
	}
	e.Use()
}

func TestLeak_global(t *testing.T) {
	leaks := leakcheck.Guard(t)
	e := guard.Open()
	leaks.Track("engine", e)
	t.Cleanup(e.Close)
	guard.Keep(e)
}

func TestLeak_parallel(t *testing.T) {
	for i := range 2 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			leaks := leakcheck.Guard(t)
			e := guard.Open()
			leaks.Track("engine", e)
			t.Cleanup(e.Close)
			guard.Keep(e)
		})
	}
}

func TestLeak_core(t *testing.T) {
	e := guard.Open()
	ref := leakcheck.Track("engine", e)
	guard.Keep(e)
	t.Cleanup(func() {
		err := ref.Released(context.Background())
		if _, ok := errors.AsType[*leakcheck.Error](err); !ok {
			t.Errorf("no leakcheck.Error: %v", err)
		}
		t.Error(err)
	})
	t.Cleanup(e.Close)
}
