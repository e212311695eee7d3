package leakcheck_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/enginetest/enginetest/leakcheck"
	"github.com/enginetest/enginetest/ledger"
)

type Engine struct {
	name  string
	batch []int
}

var engines = map[string]*Engine{}

func open(name string) *Engine {
	e := &Engine{name: name, batch: make([]int, 64)}
	engines[name] = e
	return e
}

func ExampleTrack() {
	e := open("llama")
	ref := leakcheck.Track("engine", e, leakcheck.Patience(0)) // weak: it does not keep e

	if leak, ok := errors.AsType[*leakcheck.Error](ref.Released(context.Background())); ok {
		fmt.Print(leak.Findings[0].Detail)
	}
	delete(engines, "llama")
	fmt.Println(ref.Released(context.Background()))
	// Output:
	// global  github.com/enginetest/enginetest/leakcheck_test.engines  map[string]*leakcheck_test.Engine
	// └─ ["llama"]  *leakcheck_test.Engine
	// <nil>
}

func ExampleReleased() {
	a, b := leakcheck.Track("a", open("a")), leakcheck.Track("b", open("b"))
	clear(engines)
	fmt.Println(leakcheck.Released(context.Background(), a, b)) // one series of collections for all
	// Output: <nil>
}

func ExampleAllow() {
	known := leakcheck.Allow("reference: global *leakcheck_test.engines → *leakcheck_test.Engine",
		"a cache that the process keeps")
	ref := leakcheck.Track("engine", open("known"), leakcheck.Patience(0), known)
	fmt.Println(ref.Released(context.Background()))
	clear(engines)
	// Output: <nil>
}

func ExampleGuard() {
	_ = func(t *testing.T) { // in a test
		leaks := leakcheck.Guard(t) // first: so it checks last
		e := open("llama")
		t.Cleanup(func() { delete(engines, e.name) })
		leaks.Track("engine", e)
	}
}

func ExampleScope() {
	stop := make(chan bool)
	engine := leakcheck.NewScope("engine", leakcheck.Patience(time.Millisecond))
	engine.Do(func() {
		go func() { <-stop }() // inherits the scope
	})
	fmt.Println("left behind:", engine.Gone(context.Background()) != nil)
	close(stop)
	fmt.Println(leakcheck.NewScope("another").Gone(context.Background()))
	// Output:
	// left behind: true
	// <nil>
}

func ExampleFreed() {
	gpu := ledger.New(false)
	gpu.Add(ledger.Holding{Owner: "kv_cache", Kind: "plain", Device: "GPU-0", Bytes: 64 << 20})
	fmt.Println(leakcheck.Freed(context.Background(), gpu, leakcheck.Patience(0)))
	// Output:
	// leakcheck: 64.0 MiB of device memory not given back by owner kv_cache (1 allocations)
	//       64.0 MiB  kv_cache     GPU-0 (plain)
	//     the ledger does not record stacks: make it with ledger.New(true) to see who allocated
	//     to accept: leakcheck.Allow("buffer: kv_cache", "reason")
}

func ExampleSnapshot() {
	before, err := leakcheck.Snapshot()
	if errors.Is(err, leakcheck.ErrNoHost) {
		return // not Linux
	}
	port, _ := net.Listen("tcp", "127.0.0.1:0")
	fmt.Println("left behind:", before.Restored(context.Background(), leakcheck.Patience(0)) != nil)
	port.Close()
	fmt.Println(before.Restored(context.Background()))
	// Output:
	// left behind: true
	// <nil>
}

func ExampleDiff() {
	before, _ := leakcheck.Snapshot()
	f, _ := os.Open(os.DevNull)
	after, _ := leakcheck.Snapshot()
	for _, found := range leakcheck.Diff(before, after) {
		fmt.Println(found.Kind, found.Signature)
	}
	f.Close()
	// Output: descriptor descriptor: /dev/null
}

var history [][]byte

func ExampleMeasureGrowth() {
	rep, err := leakcheck.MeasureGrowth(context.Background(), 6, func(int) {
		history = append(history, make([]byte, 1<<20))
	})
	fmt.Printf("%.0f MiB a round: %v\n", rep.Trends[0].PerRound/(1<<20), err != nil)
	history = nil
	// Output: 1 MiB a round: true
}

func ExampleGrowth() {
	_ = func(t *testing.T) { // in a test
		e := open("llama")
		leakcheck.Growth(t, 12, func(round int) { e.batch = append(e.batch[:0], round) })
	}
}
