package harness_test

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/internal/faketb"
	"github.com/enginetest/enginetest/llm"
)

// stuck is an engine whose methods ignore their contexts until mu and free let them. It is a value:
// there is no reference to explain.
type stuck struct {
	mu   *sync.Mutex
	free chan struct{}
}

func newStuck() stuck { return stuck{new(sync.Mutex), make(chan struct{})} }

func (s stuck) Generate(ctx context.Context, _ ...llm.Request) ([]llm.Output, error) {
	<-s.free
	return nil, ctx.Err()
}

func (s stuck) Shutdown(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return nil
}

// ending is a test whose deadline is near.
type ending struct {
	*faketb.T
	end time.Time
}

func (e ending) Deadline() (time.Time, bool) { return e.end, true }

func TestAShutdownThatHangsIsNamed(t *testing.T) {
	s := newStuck()
	s.mu.Lock()
	failures := faketb.Run(func(ft *faketb.T) {
		harness.Start(ft, func(context.Context) (stuck, error) { return s, nil }, quick...)
	})
	s.mu.Unlock()
	require.Len(t, failures, 1)
	assert.Contains(t, failures[0], "harness_test.stuck.Shutdown has not returned 1s after its context ended: "+
		"it waits for sync.(*Mutex).Lock in harness_test.stuck.Shutdown harness/hang_test.go:")
	assert.Contains(t, failures[0], "harness.TeardownTimeout sets the budget")
	assert.Contains(t, failures[0], "created by github.com/enginetest/enginetest/harness.within", "and the whole stack")
}

// A verb that hangs ends with its message and a teardown before the test's own deadline.
func TestAVerbThatHangsEndsBeforeTheTest(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds")
	}
	var failures []string
	for left := 1500 * time.Millisecond; left < time.Minute; left *= 2 { // a busy machine needs more to start
		s, started := newStuck(), false
		free := sync.OnceFunc(func() { close(s.free) })
		limit := time.AfterFunc(left+time.Minute, free) // a verb without a deadline fails below
		failures = faketb.Run(func(ft *faketb.T) {
			r := harness.Start(ending{ft, time.Now().Add(left)},
				func(context.Context) (stuck, error) { return s, nil }, noGPU...)
			started = true
			r.GenerateGreedy("x", 1)
		})
		limit.Stop()
		free()
		if started {
			break
		}
	}
	require.Len(t, failures, 2, "the verb ends before the test's deadline, and then the teardown fails")
	assert.Contains(t, failures[0], "generate: harness_test.stuck has not returned 1s after its context ended "+
		"(the test's own deadline is near (go test -timeout)): it is in harness_test.stuck.Generate harness/hang_test.go:")
	assert.Contains(t, failures[1], "TestPlanted is not gone", "the teardown says what the engine does meanwhile")
	assert.Contains(t, failures[1], "harness_test.stuck.Generate")
}

// With a real deadline, the next test of the binary still runs.
func TestAHangEndsOneTest(t *testing.T) {
	if os.Getenv("ENGINETEST_LONG") == "" {
		t.Skip("ENGINETEST_LONG=1 runs it: it waits for a deadline of a minute")
	}
	out, err := rerun(t, "^TestChildHang", "-test.timeout=60s")
	require.Error(t, err)
	assert.Contains(t, out, "--- FAIL: TestChildHang ")
	assert.Contains(t, out, "--- PASS: TestChildHangNext ")
	assert.NotContains(t, out, "test timed out")
}

func TestChildHang(t *testing.T) {
	onlyInChild(t)
	harness.Start(t, func(context.Context) (stuck, error) { return newStuck(), nil }, noGPU...).GenerateGreedy("x", 1)
}

func TestChildHangNext(t *testing.T) { onlyInChild(t) }

// What an engine does in a verb happens in a goroutine of its own: a panic reaches the test with
// the stack of where it was.
func TestAPanicOfTheEngineReachesTheTest(t *testing.T) {
	faketb.Run(func(ft *faketb.T) {
		r := harness.Start(ft, openToy, noGPU...)
		defer func() {
			p, ok := recover().(*harness.Panic)
			require.True(t, ok)
			assert.Contains(t, p.Error(), "harness_test.(*toy).Generate")
		}()
		r.GenerateGreedy("panic now", 1)
	})
}

// A start that hangs ends with its message before the test's own deadline, and an engine that comes
// too late is shut down.
func TestAStartThatHangsEndsBeforeTheTest(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds")
	}
	free, down := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(free) })
	defer time.AfterFunc(time.Minute, release).Stop() // a start without a deadline fails below
	failures := faketb.Run(func(ft *faketb.T) {
		open := func(ctx context.Context) (*toy, error) {
			<-free
			e, err := openToy(ctx)
			e.onClose = func(context.Context) error { close(down); return nil }
			return e, err
		}
		harness.Start(ending{ft, time.Now().Add(3 * time.Second)}, open, append(noGPU, harness.StartTimeout(time.Hour))...)
	})
	require.Len(t, failures, 1, "the start ends before the test's deadline")
	assert.Contains(t, failures[0], "TestPlanted did not start: open has not returned 1s after its context ended "+
		"(the test's own deadline is near (go test -timeout)): it is in harness_test.TestAStartThatHangs")
	assert.Contains(t, failures[0], "and what was started of it is still there", "the teardown says what is left")
	release()
	select {
	case <-down:
	case <-time.After(time.Minute):
		t.Fatal("the late engine was not shut down")
	}
}
