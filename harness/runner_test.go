package runner_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/runner"
)

// toy is an engine that repeats the prompt; its fields plant what real engines leave behind.
type toy struct {
	ledger   *ledger.Ledger
	weights  ledger.ID
	part     *part
	quit     chan struct{}
	loop     sync.WaitGroup
	children []*exec.Cmd
	onClose  func(context.Context) error
}

type part struct{ Weights [64]float32 }

func openToy(context.Context) (*toy, error) {
	e := &toy{ledger: ledger.New(true), part: &part{}, quit: make(chan struct{})}
	e.weights = e.ledger.Add(ledger.Holding{Owner: "weights", Kind: "mapped", Device: "cpu:0", Bytes: 4096})
	e.loop.Go(func() { <-e.quit })
	return e, nil
}

func (e *toy) Generate(_ context.Context, reqs ...engine.Request) ([]engine.Output, error) {
	outs := make([]engine.Output, len(reqs))
	for i, r := range reqs {
		if r.Prompt == "" {
			return nil, errors.New("toy: empty prompt")
		}
		outs[i] = engine.Output{Prompt: r.Prompt, Completions: []engine.Completion{{Text: r.Prompt}}}
		if r.Prompt == "say nothing" {
			outs[i].Completions = nil
		}
	}
	return outs, nil
}

func (e *toy) Stream(_ context.Context, req engine.Request) iter.Seq2[engine.Delta, error] {
	return func(yield func(engine.Delta, error) bool) {
		defer runtime.KeepAlive(e)
		for word := range strings.FieldsSeq(req.Prompt) {
			if !yield(engine.Delta{Text: word}, nil) {
				return
			}
		}
	}
}

func (e *toy) Shutdown(ctx context.Context) error {
	if e.onClose != nil {
		if err := e.onClose(ctx); err != nil {
			return err
		}
	}
	close(e.quit)
	e.loop.Wait()
	return e.ledger.Remove(e.weights)
}

func (e *toy) Holdings() []ledger.Holding { return e.ledger.Holdings() }

func (e *toy) Parts() map[string]any { return map[string]any{"part": e.part} }

func (e *toy) PIDs() (pids []int) {
	for _, c := range e.children {
		pids = append(pids, c.Process.Pid)
	}
	return pids
}

// fakeTB records what a fixture says of a test, and runs its cleanups.
type fakeTB struct {
	name     string
	failures []string
	cleanups []func()
}

// errFatal is what Fatalf panics with, in place of runtime.Goexit.
var errFatal = errors.New("fatal")

func (t *fakeTB) Helper()          {}
func (t *fakeTB) Name() string     { return t.name }
func (t *fakeTB) Cleanup(f func()) { t.cleanups = append(t.cleanups, f) }
func (t *fakeTB) Errorf(f string, a ...any) {
	t.failures = append(t.failures, fmt.Sprintf(f, a...))
}
func (t *fakeTB) Fatalf(f string, a ...any) { t.Errorf(f, a...); panic(errFatal) }

// run is one test from start to its last cleanup; it returns what failed.
func run(body func(t *fakeTB)) []string {
	t := &fakeTB{name: "TestPlanted"}
	func() {
		defer func() {
			switch v := recover(); v {
			case nil, errFatal:
			default:
				panic(v)
			}
		}()
		body(t)
	}()
	for i := len(t.cleanups) - 1; i >= 0; i-- {
		t.cleanups[i]()
	}
	return t.failures
}

// noGPU leaves the GPUs out; quick also keeps the waits of checks short that are to fail.
var (
	noGPU = []runner.Option{runner.WithoutDeviceMemory("no GPU in this test")}
	quick = append(noGPU, runner.TeardownTimeout(2*time.Second))
)

func TestCleanEngineIsSilent(t *testing.T) {
	failures := run(func(ft *fakeTB) {
		r := runner.Start(ft, openToy, noGPU...)
		assert.Equal(t, "hello", r.GenerateGreedy("hello", 4).Text)
		var words []string
		for d := range r.Stream(engine.Request{Prompt: "a b c"}) {
			words = append(words, d.Text)
		}
		assert.Equal(t, []string{"a", "b", "c"}, words)
	})
	assert.Empty(t, failures)
}

var keep []any // a package-level registry, the usual culprit

func TestPlantedLeaksAreNamed(t *testing.T) {
	for _, leak := range []struct {
		name, reason string
		plant        func(*toy)
		want         []string
	}{
		{
			"error of Shutdown", "vLLM's fixture swallowed it for years",
			func(e *toy) { e.onClose = func(context.Context) error { return errors.New("connector still busy") } },
			[]string{"shutdown", "connector still busy"},
		},
		{
			"panic of Shutdown", "the other checks must still run",
			func(e *toy) { e.onClose = func(context.Context) error { panic("boom") } },
			[]string{"shutdown", "panicked: boom", "holdings", "goroutines"},
		},
		{
			"hang of Shutdown", "an engine that ignores its context",
			func(e *toy) { e.onClose = func(context.Context) error { select {} } },
			[]string{"has not returned 1s after its context ended", "runner.TeardownTimeout"},
		},
		{
			"buffer", "memory with an owner and the place of the allocation",
			func(e *toy) {
				e.ledger.Add(ledger.Holding{Owner: "kv_cache", Kind: "mapped", Device: "cpu:0", Bytes: 1 << 20})
			},
			[]string{"holdings", "1.0 MiB", "kv_cache", "runner_test.go"},
		},
		{
			"goroutine", "a poller that nobody joins",
			func(*toy) { go func() { select {} }() },
			[]string{"goroutines", "select (no cases)", "runner_test"},
		},
		{
			"reference", "a registry that pins the engine",
			func(e *toy) { keep = append(keep, e) },
			[]string{"references", "*runner_test.toy", "runner_test.keep"},
		},
		{
			"reference to a part", "the engine is gone, its model runner is not",
			func(e *toy) { keep = append(keep, e.part) },
			[]string{"references", "*runner_test.part", `tracked as "part"`},
		},
		{
			"file", "a descriptor that the engine opened",
			func(*toy) { f, _ := os.Open("/dev/null"); keep = append(keep, f) },
			[]string{"host", "/dev/null"},
		},
		{
			"process", "a worker that outlives its engine",
			func(e *toy) {
				c := exec.Command("sleep", "60")
				if err := c.Start(); err == nil {
					e.children = append(e.children, c)
					go c.Wait()
				}
			},
			[]string{"processes", "(sleep 60) is still there; it was killed"},
		},
	} {
		t.Run(leak.name, func(t *testing.T) {
			t.Log(leak.reason)
			defer func() { keep = nil }()
			planted := func(opts ...runner.Option) []string {
				return run(func(ft *fakeTB) {
					runner.Start(ft, func(ctx context.Context) (*toy, error) {
						e, err := openToy(ctx)
						leak.plant(e)
						return e, err
					}, append(opts, quick...)...)
				})
			}
			failures := planted()
			require.Len(t, failures, 1)
			t.Log(failures[0])
			for _, want := range append(leak.want, "runner: TestPlanted is not gone", "to reproduce: go test") {
				assert.Contains(t, failures[0], want)
			}
			assert.NotContains(t, failures[0], `Allow("sync.`, "a pattern that every sync.WaitGroup.Go would match")
			if accept := regexp.MustCompile(`to accept: runner.Allow\("(.*)"\)`).FindStringSubmatch(failures[0]); accept != nil && strings.Contains(failures[0], "1 of 7") {
				assert.Empty(t, planted(runner.Allow(accept[1])), "the message says how to accept it")
			}
		})
	}
}

func TestFailedStartIsTornDown(t *testing.T) {
	cause := errors.New("no weights")
	var opened *toy
	failures := run(func(ft *fakeTB) {
		runner.Start(ft, func(ctx context.Context) (*toy, error) {
			opened, _ = openToy(ctx)
			return opened, cause
		}, quick...)
	})
	require.Len(t, failures, 1)
	assert.Contains(t, failures[0], "did not start: no weights")
	assert.Contains(t, failures[0], "references", "opened still holds it")
	assert.Empty(t, opened.Holdings(), "an engine that comes with an error is shut down")

	_, err := runner.Open(t.Context(), func(context.Context) (*toy, error) { return nil, cause }, quick...)
	assert.ErrorIs(t, err, cause)
	_, err = runner.Open(t.Context(), func(context.Context) (*toy, error) { return nil, nil }, quick...)
	assert.ErrorContains(t, err, "returned a nil *runner_test.toy and no error")
	_, err = runner.Open(t.Context(), func(context.Context) (*toy, error) { panic("half-way") }, quick...)
	assert.ErrorContains(t, err, "half-way")
	_, err = runner.Open(t.Context(), func(ctx context.Context) (*toy, error) { <-ctx.Done(); return nil, ctx.Err() },
		append(quick, runner.StartTimeout(20*time.Millisecond))...)
	assert.ErrorContains(t, err, "runner.StartTimeout")
}

// speaker can what the bundled engine lacks.
type speaker struct{ *toy }

func (speaker) Embed(_ context.Context, texts ...string) ([][]float32, error) {
	return [][]float32{{float32(len(texts))}}, nil
}

func (speaker) Classify(_ context.Context, texts ...string) ([][]float32, error) {
	return nil, fmt.Errorf("no classes for %q", texts)
}

func (speaker) Score(_ context.Context, query string, texts ...string) ([]float32, error) {
	return []float32{float32(len(query)), float32(len(texts))}, nil
}

func (speaker) Chat(_ context.Context, m []runner.Message, _ engine.SamplingParams) (engine.Output, error) {
	return engine.Output{Prompt: m[0].Role + ": " + m[0].Content}, nil
}

func TestVerbsOfOtherEngines(t *testing.T) {
	failures := run(func(ft *fakeTB) {
		r := runner.Start(ft, func(ctx context.Context) (*speaker, error) {
			e, err := openToy(ctx)
			return &speaker{e}, err
		}, noGPU...)
		assert.Equal(t, [][]float32{{2}}, r.Embed("a", "b"))
		assert.Equal(t, []float32{1, 2}, r.Score("q", "a", "b"))
		assert.Equal(t, "user: hi", r.Chat([]runner.Message{{Role: "user", Content: "hi"}}, engine.SamplingParams{}).Prompt)
		r.Classify("x")
	})
	assert.Equal(t, []string{`runner: classify: no classes for ["x"]`}, failures)
}

func TestMissingCapabilityIsNamed(t *testing.T) {
	failures := run(func(ft *fakeTB) { runner.Start(ft, openToy, noGPU...).Sleep(1) })
	require.Len(t, failures, 1)
	assert.Contains(t, failures[0], "*runner_test.toy does not implement runner.Sleeper")
}

func TestErrorsOfTheEngineFailTheTest(t *testing.T) {
	failures := run(func(ft *fakeTB) {
		r := runner.Start(ft, openToy, noGPU...)
		_, err := r.TryGenerate(engine.Request{})
		assert.ErrorContains(t, err, "empty prompt")
		r.GenerateGreedy("", 1)
	})
	require.Len(t, failures, 1)
	assert.Contains(t, failures[0], "empty prompt")
	failures = run(func(ft *fakeTB) { runner.Start(ft, openToy, noGPU...).GenerateGreedy("say nothing", 1) })
	assert.Equal(t, []string{"runner: generate: *runner_test.toy.Generate gave no completion for request 1 of 1"}, failures)
	failures = run(func(ft *fakeTB) { runner.Start(ft, openToy, noGPU...).BeamSearch(engine.Request{Prompt: "x"}, 2, 2) })
	assert.Equal(t, []string{"runner: beam search: *runner_test.toy.Generate gave no log-probabilities"}, failures)
}

func TestStopTwiceAndUseAfter(t *testing.T) {
	failures := run(func(ft *fakeTB) {
		r := runner.Start(ft, openToy, noGPU...)
		first := r.Stop()
		require.NoError(t, first.Err())
		assert.Len(t, first.Steps, 7)
		assert.Equal(t, first, r.Stop())
		r.GenerateGreedy("x", 1)
	})
	require.Len(t, failures, 1)
	assert.Contains(t, failures[0], "has been stopped")
}

// gpu is a device whose used memory a test sets.
type gpu struct{ used int64 }

func (g *gpu) Devices() ([]gpuwait.Device, error) {
	return []gpuwait.Device{{UUID: "GPU-1", Name: "Test GPU", Vendor: gpuwait.NVIDIA}}, nil
}

func (g *gpu) Memory(string) (gpuwait.Memory, error) {
	return gpuwait.Memory{Total: 80 << 30, Used: g.used}, nil
}

func (g *gpu) Holders(string) ([]gpuwait.Holder, error) {
	return []gpuwait.Holder{{PID: os.Getpid(), Bytes: g.used, Known: true}}, nil
}

func TestDeviceMemory(t *testing.T) {
	allVisible(t)
	device := &gpu{used: 1 << 30}
	opts := []runner.Option{runner.TeardownTimeout(2 * time.Second), runner.DeviceSource(device)}
	assert.Empty(t, run(func(ft *fakeTB) { runner.Start(ft, openToy, opts...) }), "held before, held after: not this engine's")
	failures := run(func(ft *fakeTB) {
		runner.Start(ft, openToy, opts...)
		device.used = 9 << 30
	})
	require.Len(t, failures, 1)
	for _, want := range []string{"device memory", "GPU-1", "9.0", "baseline", "runner.DeviceSlack(bytes)"} {
		assert.Contains(t, failures[0], want)
	}
	device.used = 1 << 30
	assert.Empty(t, run(func(ft *fakeTB) {
		runner.Start(ft, openToy, append(opts, runner.DeviceSlack(8<<30))...)
		device.used = 9 << 30
	}), "accepted")
}

// allVisible unhides devices: those of a test are not the machine's.
func allVisible(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "") // for its cleanup
	require.NoError(t, os.Unsetenv("CUDA_VISIBLE_DEVICES"))
}

// What a fixture holds that lives longer is added to the bound of one that ends.
func TestDeviceMemoryOfOtherFixtures(t *testing.T) {
	allVisible(t)
	device := &gpu{}
	opts := []runner.Option{runner.TeardownTimeout(2 * time.Second), runner.DeviceSource(device)}
	openOnGPU := func(ctx context.Context) (*toy, error) {
		e, err := openToy(ctx)
		e.ledger.Add(ledger.Holding{Owner: "kv_cache", Kind: "plain", Device: "GPU-1", Bytes: 20 << 30})
		return e, err
	}
	var long *runner.Fixture
	failures := run(func(ft *fakeTB) {
		runner.Start(ft, openToy, opts...)
		var err error
		long, err = runner.Open(t.Context(), openOnGPU, opts...)
		require.NoError(t, err)
		device.used = 20<<30 + 527<<20 // its memory, and the context
	})
	assert.Empty(t, failures, "what long owns is not this fixture's")
	failures = run(func(ft *fakeTB) {
		runner.Start(ft, openToy, opts...)
		device.used += 9 << 30
	})
	require.Len(t, failures, 1, "what nobody owns is")
	assert.Contains(t, failures[0], "device memory")
	device.used = 0
	report := long.Close(t.Context())
	assert.ErrorContains(t, report.Err(), "kv_cache", "the planted buffer")
	assert.NoError(t, report.Steps[5].Err)
}

func TestParallelFixturesAreToldApart(t *testing.T) {
	var wg sync.WaitGroup
	results := make([][]string, 4)
	for i := range results {
		wg.Go(func() {
			results[i] = run(func(ft *fakeTB) {
				ft.name = fmt.Sprintf("TestParallel%d", i)
				runner.Start(ft, func(ctx context.Context) (*toy, error) {
					e, err := openToy(ctx)
					if i == 2 {
						go func() { time.Sleep(10 * time.Second) }()
					}
					return e, err
				}, noGPU...)
			})
		})
	}
	wg.Wait()
	for i, failures := range results {
		if i != 2 {
			assert.Empty(t, failures, "fixture %d leaks nothing", i)
			continue
		}
		require.Len(t, failures, 1)
		assert.Contains(t, failures[0], "TestParallel2: 1 of 1 goroutine(s)")
	}
}
