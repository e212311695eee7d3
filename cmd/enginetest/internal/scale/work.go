package scale

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/gpuwait/gpuwaittest"
	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/internal/proc"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/report"
)

// engine is an engine with a goroutine and some memory: what its proof has to look for.
type engine struct {
	weights []byte
	quit    chan struct{}
	done    chan struct{}
}

func open(context.Context) (*engine, error) {
	e := &engine{weights: make([]byte, 64<<10), quit: make(chan struct{}), done: make(chan struct{})}
	quit, done := e.quit, e.done
	go func() { <-quit; close(done) }()
	return e, nil
}

func (e *engine) Generate(context.Context, ...llm.Request) ([]llm.Output, error) { return nil, nil }

func (e *engine) Shutdown(context.Context) error {
	close(e.quit)
	<-e.done
	return nil
}

func fixture(ctx context.Context) (*harness.Fixture, error) {
	return harness.Open(ctx, open, harness.WithoutDeviceMemory("a curve of its own"))
}

func oneAfterAnother(ctx context.Context, n int) (time.Duration, error) {
	start := time.Now()
	for range n {
		f, err := fixture(ctx)
		if err != nil {
			return 0, err
		}
		if err := f.Close(ctx).Err(); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

// together closes fixtures that were all open at once; only the proofs are measured.
func together(ctx context.Context, n int) (time.Duration, error) {
	var all []*harness.Fixture
	for range n {
		f, err := fixture(ctx)
		if err != nil {
			return 0, err
		}
		all = append(all, f)
	}
	start := time.Now()
	for _, f := range all {
		if err := f.Close(ctx).Err(); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

// node is a small object of the heap that a proof is measured beside.
type node struct {
	next *node
	_    [6]uint64
}

func besideHeap(ctx context.Context, megabytes int) (time.Duration, error) {
	heap := make([]*node, megabytes<<20/64) // with its pointer, a node takes 64 bytes
	for i := range heap {
		heap[i] = &node{next: heap[i/2]}
	}
	runtime.GC()
	defer func() { runtime.KeepAlive(heap); heap = nil; runtime.GC() }()
	return oneAfterAnother(ctx, 1)
}

// family ends a command with n processes.
func family(ctx context.Context, n int) (time.Duration, error) {
	cmd := exec.Command("sh", "-c", fmt.Sprintf("i=1; while [ $i -lt %d ]; do sleep 600 & i=$((i+1)); done; exec sleep 600", n))
	f, err := proc.Start(cmd)
	if err != nil {
		return 0, err
	}
	defer f.Stop(ctx, proc.StopOptions{})
	for {
		all, err := f.Processes()
		if err != nil {
			return 0, err
		}
		if len(all) >= n {
			break
		}
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-f.Done():
			return 0, fmt.Errorf("%d of %d processes were started", len(all), n)
		case <-time.After(200 * time.Millisecond):
		}
	}
	start := time.Now()
	r := f.Stop(ctx, proc.StopOptions{Limit: 5 * time.Minute})
	if len(r.Left) > 0 {
		return 0, fmt.Errorf("%d processes are left", len(r.Left))
	}
	return time.Since(start), nil
}

// devices accounts for n devices, from the baseline until the memory is back.
func devices(ctx context.Context, n int) (time.Duration, error) {
	own := []gpuwait.Holder{{PID: os.Getpid(), Bytes: 1 << 30, Known: true}}
	list := make([]gpuwaittest.Device, n)
	for i := range list {
		list[i] = gpuwaittest.Device{Device: gpuwait.Device{Index: i, UUID: fmt.Sprintf("GPU-%d", i)}, Total: 80 << 30}
	}
	src := gpuwaittest.New(list...)
	set := func(step gpuwaittest.Step) {
		for _, d := range list {
			src.Set(d.UUID, step)
		}
	}
	start := time.Now()
	const rounds = 20 // one is too short to measure
	for range rounds {
		set(gpuwaittest.Step{})
		account, err := gpuwait.NewAccount(ctx, src, gpuwait.Descendants(os.Getpid()))
		if err != nil {
			return 0, err
		}
		set(gpuwaittest.Step{Used: 1 << 30, Holders: own})
		account.Read()
		set(gpuwaittest.Step{})
		if _, err := account.Returned(ctx); err != nil {
			return 0, err
		}
	}
	return time.Since(start) / rounds, nil
}

// reports reads the events of n tests, of which one in a hundred fails, and writes the page.
func reports(_ context.Context, n int) (time.Duration, error) {
	var events bytes.Buffer
	event := func(action, test, output string) {
		fmt.Fprintf(&events, `{"Action":%q,"Package":"example.com/llm","Test":%q,"Output":%q}`+"\n", action, test, output)
	}
	for i := range n {
		name := fmt.Sprintf("TestNumber%06d", i)
		event("run", name, "")
		if i%100 == 0 {
			for range 30 {
				event("output", name, "    a_test.go:3: a line of output that has nothing to say\n")
			}
			event("output", name, "    a_test.go:9: got 3, want 4\n")
			event("fail", name, "")
			continue
		}
		event("output", name, "    a_test.go:3: fine\n")
		event("pass", name, "")
	}
	text := events.String()
	start := time.Now()
	var c report.Collector
	if err := c.Read(strings.NewReader(text), report.Source{Name: "events"}); err != nil {
		return 0, err
	}
	var page bytes.Buffer
	if err := c.Report().WriteHTML(&page); err != nil {
		return 0, err
	}
	return time.Since(start), nil
}
