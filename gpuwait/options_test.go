package gpuwait_test

import (
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/gpuwait"
)

// Each option goes with the verbs that heed it, and does not compile with the others. A call f(…,
// opt) compiles when the type that opt's constructor returns has the methods of f's option type.
func TestOptionsCompileWhereTheyCount(t *testing.T) {
	verbs := map[string]any{
		"Clear": gpuwait.Clear, "ForClear": gpuwait.ForClear, "Acquire": gpuwait.Acquire, "AcquireContext": gpuwait.AcquireContext,
		"Snapshot": gpuwait.Snapshot, "Inspect": gpuwait.Inspect, "NewAccount": gpuwait.NewAccount, "Returned": (*gpuwait.Account).Returned,
	}
	waits := "Clear ForClear Acquire AcquireContext Returned"
	for _, tc := range []struct {
		option any
		verbs  string
	}{
		{gpuwait.Devices, "Clear ForClear Acquire AcquireContext Snapshot Inspect NewAccount"},
		{gpuwait.Env, "Clear ForClear Acquire AcquireContext Snapshot Inspect NewAccount"},
		{gpuwait.Timeout, waits},
		{gpuwait.Reproduce, waits},
		{gpuwait.Progress, waits},
		{gpuwait.Patience, "Clear ForClear Returned"},
		{gpuwait.KeepWaiting, "Clear ForClear Returned"},
		{gpuwait.OwnedBy, "Clear ForClear Snapshot NewAccount"},
		{gpuwait.LeaseDir, "Clear ForClear Acquire AcquireContext Inspect"},
		{gpuwait.From, "ForClear Acquire AcquireContext"},
		{gpuwait.Grace, "ForClear Acquire"},
		{gpuwait.SkipUnmeasurable, "ForClear Acquire"},
		{gpuwait.MinFree, "Acquire AcquireContext"},
		{gpuwait.As, "Acquire AcquireContext"},
		{gpuwait.SkipIfBusy, "Acquire"},
		{gpuwait.Slack, "Returned"},
	} {
		option := reflect.TypeOf(tc.option).Out(0)
		for name, verb := range verbs {
			f := reflect.TypeOf(verb)
			takes := f.In(f.NumIn() - 1).Elem()
			want := strings.Contains(" "+tc.verbs+" ", " "+name+" ")
			assert.Equal(t, want, option.AssignableTo(takes), "%v in %s", option, name)
		}
	}
}

// Deadline panics in a bubble of testing/synctest, and a channel that is made in one must not be
// used outside it.
func TestVerbsInABubble(t *testing.T) {
	opts := leasing(t, gpuwait.Devices(gpu1))
	for range 2 { // what the first leaves behind, the second meets
		synctest.Test(t, func(t *testing.T) {
			gpuwait.ForClear(t, gpuwait.Ratio(0.1), gpuwait.From(twoGPUs(0, 0)), everything)
			l := gpuwait.Acquire(t, 1, forTest(opts)...)
			assert.Equal(t, []string{gpu1}, l.UUIDs())
			_, err := gpuwait.AcquireContext(t.Context(), 1,
				with(opts, gpuwait.As("TestNext"), gpuwait.Timeout(time.Minute))...)
			require.ErrorIs(t, err, gpuwait.ErrBusy)
		})
		l, err := gpuwait.AcquireContext(t.Context(), 1, opts...)
		require.NoError(t, err, "released by the bubble's cleanup")
		l.Release()
	}
}
