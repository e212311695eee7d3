package ledger_test

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/ledger"
)

func Example() {
	l := ledger.New(false)
	weights := l.Add(ledger.Holding{Owner: "weights", Kind: "plain", Device: "GPU-1", Bytes: 7 << 30})
	l.Add(ledger.Holding{Owner: "kv_cache", Kind: "plain", Device: "GPU-1", Bytes: 512 << 20})
	_ = l.Remove(weights)
	for _, h := range l.Holdings() {
		fmt.Println("still held:", h)
	}
	fmt.Println(l.Remove(weights))
	// Output:
	// still held: kv_cache 512.0 MiB on GPU-1 (plain)
	// ledger: no live allocation with this id: 1
}

func TestSumsAndOrder(t *testing.T) {
	var l ledger.Ledger // the zero value is ready
	var ids []ledger.ID
	for _, bytes := range []int64{3, 9, 1, 9} {
		ids = append(ids, l.Add(ledger.Holding{Owner: fmt.Sprint("o", bytes), Bytes: bytes}))
	}
	assert.EqualValues(t, 22, l.Bytes())
	assert.Equal(t, map[string]int64{"o1": 1, "o3": 3, "o9": 18}, ledger.ByOwner(l.Holdings()))
	assert.EqualValues(t, 9, l.Holdings()[0].Bytes, "largest first")
	for _, id := range ids {
		require.NoError(t, l.Remove(id))
	}
	assert.Zero(t, l.Bytes())
	assert.EqualValues(t, 22, l.Peak())
	assert.Empty(t, l.Holdings())
	assert.ErrorIs(t, l.Remove(ids[0]), ledger.ErrUnknownID, "a double free")
}

func TestStacksStartAtTheCaller(t *testing.T) {
	l := ledger.New(true)
	l.Add(ledger.Holding{Owner: "kv_cache", Bytes: 1 << 20})
	h := l.Holdings()[0]
	require.NotEmpty(t, h.Stack)
	assert.Contains(t, h.Stack[0], "ledger_test.TestStacksStartAtTheCaller")
	assert.Contains(t, h.String(), "allocated by github.com/enginetest/enginetest/ledger_test")
	assert.Contains(t, ledger.Format(l.Holdings()), "1.0 MiB  kv_cache")
}

func TestConcurrentUse(t *testing.T) {
	l := ledger.New(false)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				assert.NoError(t, l.Remove(l.Add(ledger.Holding{Owner: "x", Bytes: 4})))
				_ = l.Holdings()
			}
		})
	}
	wg.Wait()
	assert.Zero(t, l.Bytes())
}

func TestFormatBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1<<20 - 1: "1.0 MiB", 63<<30 + 100<<20: "63.1 GiB", -2048: "-2.0 KiB", math.MaxInt64: "8.0 EiB",
	} {
		assert.Equal(t, want, ledger.FormatBytes(n))
	}
	assert.True(t, strings.HasPrefix(ledger.FormatBytes(math.MinInt64), "-8.0 EiB"))
}
