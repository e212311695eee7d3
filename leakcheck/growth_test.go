package leakcheck_test

import (
	"context"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/enginetest/enginetest/leakcheck"
	"github.com/enginetest/enginetest/ledger"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type request struct {
	id      int
	payload []byte
	next    *request
	hashes  func() int
	done    chan struct{}
}

//go:noinline
func newRequest(i int) *request {
	return &request{id: i, payload: make([]byte, 64<<10), done: make(chan struct{})}
}

var (
	kept    = map[int]func() int{}
	sinks   [][]byte
	small   []*[4]uintptr
	devices = ledger.New(false)
	files   []*os.File
)

func TestGrowthAllowed(t *testing.T) {
	defer func() { sinks = nil }()
	grow := func(i int) { sinks = append(sinks, newRequest(i).payload) }
	_, err := leakcheck.MeasureGrowth(t.Context(), 5, grow, leakcheck.GrowthAllowed(1<<20))
	require.NoError(t, err)
	_, err = leakcheck.MeasureGrowth(t.Context(), 5, grow, leakcheck.GrowthAllowed(1<<10), leakcheck.WithoutPaths())
	require.ErrorContains(t, err, "allowed 1.0 KiB")
}

// TestGrowth: each way to grow is found, and named; five rounds are enough.
func TestGrowth(t *testing.T) {
	for _, row := range []struct {
		name  string
		round func(i int)
		want  []string
	}{
		{"closure in a map", func(i int) {
			for k := range 4 {
				r := newRequest(i)
				r.hashes = func() int { return len(r.payload) }
				kept[4*i+k] = r.hashes
			}
		}, []string{"Go heap: 2", "newRequest leakcheck/growth_test.go", "leakcheck_test.kept", "captured r"}},
		{"goroutine that never ends", func(i int) {
			r := newRequest(i)
			go func() { <-r.done; runtime.KeepAlive(r) }()
		}, []string{"goroutines: 1.0 more with every round", "[chan receive] in", "Go heap: 6"}},
		{"part of a buffer", func(i int) {
			sinks = append(sinks, newRequest(i).payload[:16:16])
		}, []string{"Go heap: 6", "leakcheck_test.sinks", "keeps its whole array"}},
		{"finalizer cycle", func(i int) {
			r := newRequest(i)
			r.next = &request{next: r}
			runtime.SetFinalizer(r, func(r *request) { r.payload = nil })
		}, []string{"Go heap: 6", "finalizer", ".payload"}},
		{"small objects", func(int) {
			for range 2000 {
				small = append(small, new([4]uintptr))
			}
		}, []string{"Go heap:", "leakcheck_test.small"}},
		{"timers", func(i int) {
			r := newRequest(i)
			time.AfterFunc(time.Hour, func() { r.id++ })
		}, []string{"Go heap: 6", "timer"}},
		{"device memory", func(int) {
			devices.Add(ledger.Holding{Owner: "workspace", Device: "cpu:0", Kind: "mapped", Bytes: 1 << 20})
		}, []string{"device memory: 1.0 MiB more with every round", "+8.0 MiB of owner workspace", "fds  device memory\n"}},
		{"descriptors", func(int) {
			f, err := os.Open(os.DevNull)
			require.NoError(t, err)
			files = append(files, f)
		}, []string{"file descriptors: 1.0 more", "+8 descriptor: /dev/null\n", "fds  file descriptors\n"}},
		{"sockets", func(int) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			f, err := l.(*net.TCPListener).File()
			require.NoError(t, err)
			files = append(files, f)
			l.Close()
		}, []string{"file descriptors: 1.0 more", "+8 socket: tcp 127.0.0.1:* listening\n"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := leakcheck.MeasureGrowth(context.Background(), 5, row.round, leakcheck.DeviceMemory(devices))
			require.Error(t, err)
			t.Log(err)
			for _, want := range row.want {
				assert.ErrorContains(t, err, want)
			}
		})
	}
	clear(kept)
	sinks, small = nil, nil
	for _, f := range files {
		f.Close()
	}
}

// TestNoGrowth: what is freed, or fills up once, does not grow.
func TestNoGrowth(t *testing.T) {
	ring := make([][]byte, 16)
	for _, row := range []struct {
		name  string
		round func(i int)
	}{
		{"nothing", func(int) {}},
		{"garbage", func(i int) { newRequest(i) }},
		{"a cycle", func(i int) { r := newRequest(i); r.next = &request{next: r} }},
		{"a cache of fixed size", func(i int) { ring[i%len(ring)] = make([]byte, 64<<10) }},
		{"goroutines that end", func(i int) {
			r, done := newRequest(i), make(chan bool)
			go func() { runtime.KeepAlive(r); close(done) }()
			<-done
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			leakcheck.Growth(t, 30, row.round, leakcheck.Warmup(18))
		})
	}
}

func TestTooFewRounds(t *testing.T) {
	_, err := leakcheck.MeasureGrowth(context.Background(), 3, func(int) {})
	assert.ErrorContains(t, err, "at least four")
}
