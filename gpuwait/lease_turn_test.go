package gpuwait_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/gpuwait"
)

// First come, first served: also for a device that is free while an earlier one waits for it and
// another.
func TestLeaseIsFair(t *testing.T) {
	opts := leasing(t)
	held, err := gpuwait.AcquireContext(t.Context(), 1, with(opts, gpuwait.Devices(gpu1))...)
	require.NoError(t, err)
	var mu sync.Mutex
	var order []string
	var wg sync.WaitGroup
	queued := 0
	queueUp := func(name string, n int, devices ...string) {
		wg.Go(func() {
			l, err := gpuwait.AcquireContext(t.Context(), n,
				with(opts, gpuwait.As(name), gpuwait.Devices(devices...))...)
			if !assert.NoError(t, err) {
				return
			}
			mu.Lock()
			order = append(order, name)
			mu.Unlock()
			l.Release()
		})
		queued++
		require.Eventually(t, func() bool { return gpuwait.Queued() == queued }, time.Minute, time.Millisecond)
	}
	queueUp("both", 2, gpu1, gpu2)
	queueUp("second of gpu1", 1, gpu1)
	queueUp("second of gpu2", 1, gpu2)
	mu.Lock()
	assert.Empty(t, order, "gpu2 is free, and belongs to the one who came first")
	mu.Unlock()
	held.Release()
	wg.Wait()
	assert.Equal(t, "both", order[0])
}

func TestLeaseManyAtOnce(t *testing.T) {
	opts := leasing(t)
	var mu sync.Mutex
	held := map[string]bool{}
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			l, err := gpuwait.AcquireContext(t.Context(), 1+i%2, with(opts, gpuwait.As(fmt.Sprint("T", i)))...)
			if !assert.NoError(t, err) {
				return
			}
			mu.Lock()
			for _, u := range l.UUIDs() {
				assert.False(t, held[u], "two hold %s", u)
				held[u] = true
			}
			mu.Unlock()
			runtime.Gosched()
			mu.Lock()
			for _, u := range l.UUIDs() {
				held[u] = false
			}
			mu.Unlock()
			l.Release()
		})
	}
	wg.Wait()
}

func TestLeaseThatWouldWaitForItself(t *testing.T) {
	opts := leasing(t, gpuwait.Devices(gpu1))
	l, err := gpuwait.AcquireContext(t.Context(), 1, with(opts, gpuwait.As("TestX"))...)
	require.NoError(t, err)
	defer l.Release()
	for _, name := range []string{"TestX", "TestX/sub"} {
		_, err = gpuwait.AcquireContext(t.Context(), 1, with(opts, gpuwait.As(name))...)
		require.ErrorContains(t, err, "TestX holds it already")
	}
}

func TestLeaseWaitsUntilShortlyBeforeTheTestsDeadline(t *testing.T) {
	opts := leasing(t, gpuwait.Devices(gpu1))
	l, err := gpuwait.AcquireContext(t.Context(), 1, with(opts, gpuwait.As("TestSlow"))...)
	require.NoError(t, err)
	defer l.Release()
	ft := &fakeT{name: "TestWaits", deadline: time.Now().Add(time.Hour)}
	ft.run(func() { gpuwait.Acquire(ft, 1, forTest(opts, gpuwait.Grace(time.Hour-100*time.Millisecond))...) })
	assert.True(t, time.Now().Before(ft.deadline))
	assert.Contains(t, ft.fatal, "leased by pid")
	assert.Contains(t, ft.fatal, "TestSlow")
	assert.Contains(t, ft.fatal, "the test's own deadline is near")
	assert.Contains(t, ft.fatal, "github.com/enginetest/enginetest/gpuwait -run '^TestWaits$' -count=1")

	ft = &fakeT{name: "TestSkips", deadline: time.Now().Add(50 * time.Millisecond)}
	ft.run(func() { gpuwait.Acquire(ft, 1, forTest(opts, gpuwait.SkipIfBusy())...) })
	assert.Empty(t, ft.fatal)
	assert.Contains(t, ft.skip, "TestSlow")

	l.Release()
	ft = &fakeT{name: "TestGets"}
	ft.run(func() { gpuwait.Acquire(ft, 1, forTest(opts)...) })
	assert.Empty(t, ft.fatal)
	require.Len(t, ft.cleanups, 1)
	ft.cleanups[0]()
	again, err := gpuwait.AcquireContext(t.Context(), 1, with(opts, gpuwait.Timeout(0))...)
	require.NoError(t, err, "cleanup released it")
	again.Release()
}

func TestLeaseContextEnds(t *testing.T) {
	opts := leasing(t, gpuwait.Devices(gpu1))
	l, err := gpuwait.AcquireContext(t.Context(), 1, with(opts, gpuwait.As("TestOne"))...)
	require.NoError(t, err)
	defer l.Release()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, errors.New("enough"))
	defer cancel()
	_, err = gpuwait.AcquireContext(ctx, 1, with(opts, gpuwait.As("TestTwo"))...)
	require.ErrorIs(t, err, gpuwait.ErrBusy)
	require.ErrorContains(t, err, "enough")
}
