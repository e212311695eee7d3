package harness_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/internal/faketb"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
)

// toy is an engine that repeats the prompt; its fields plant what real engines leave behind.
type toy struct {
	ledger   *ledger.Ledger
	weights  ledger.ID
	part     *part
	quit     chan struct{}
	loop     sync.WaitGroup
	children []*exec.Cmd
	dir      string // for its files
	onClose  func(context.Context) error
}

type part struct{ Weights [64]float32 }

func openToy(context.Context) (*toy, error) {
	e := &toy{ledger: ledger.New(true), part: &part{}, quit: make(chan struct{})}
	e.weights = e.ledger.Add(ledger.Holding{Owner: "weights", Kind: "mapped", Device: "cpu:0", Bytes: 4096})
	e.loop.Go(func() { <-e.quit })
	return e, nil
}

func (e *toy) Generate(_ context.Context, reqs ...llm.Request) ([]llm.Output, error) {
	outs := make([]llm.Output, len(reqs))
	for i, r := range reqs {
		if r.Prompt == "" {
			return nil, errors.New("toy: empty prompt")
		}
		if r.Prompt == "panic now" {
			panic("toy: as told")
		}
		outs[i] = llm.Output{Prompt: r.Prompt, Completions: []llm.Completion{{Text: r.Prompt}}}
		if r.Prompt == "say nothing" {
			outs[i].Completions = nil
		}
	}
	return outs, nil
}

func (e *toy) Stream(_ context.Context, req llm.Request) iter.Seq2[llm.Delta, error] {
	return func(yield func(llm.Delta, error) bool) {
		defer runtime.KeepAlive(e)
		for word := range strings.FieldsSeq(req.Prompt) {
			if !yield(llm.Delta{Text: word}, nil) {
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

// noGPU leaves the GPUs out; quick also keeps the waits of checks short that are to fail.
var (
	noGPU = []harness.Option{harness.WithoutDeviceMemory("no GPU in this test")}
	quick = append(noGPU, harness.TeardownTimeout(2*time.Second))
)

func TestCleanEngineIsSilent(t *testing.T) {
	failures := faketb.Run(func(ft *faketb.T) {
		r := harness.Start(ft, openToy, noGPU...)
		assert.Equal(t, "hello", r.GenerateGreedy("hello", 4).Text)
		var words []string
		for d := range r.Stream(llm.Request{Prompt: "a b c"}) {
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
			[]string{"has not returned 1s after its context ended", "harness.TeardownTimeout"},
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
			[]string{"references", "*harness_test.toy", "harness_test.keep"},
		},
		{
			"reference to a part", "the engine is gone, its model runner is not",
			func(e *toy) { keep = append(keep, e.part) },
			[]string{"references", "*harness_test.part", `tracked as "part"`},
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
			planted := func(opts ...harness.Option) []string {
				return faketb.Run(func(ft *faketb.T) {
					harness.Start(ft, func(ctx context.Context) (*toy, error) {
						e, err := openToy(ctx)
						leak.plant(e)
						return e, err
					}, append(opts, quick...)...)
				})
			}
			failures := planted()
			require.Len(t, failures, 1)
			t.Log(failures[0])
			for _, want := range append(leak.want, "harness: TestPlanted is not gone", "to reproduce: go test") {
				assert.Contains(t, failures[0], want)
			}
			assert.NotContains(t, failures[0], `Allow("sync.`, "a pattern that every sync.WaitGroup.Go would match")
			if accept := regexp.MustCompile(`to accept: harness.Allow\((".*"), "reason"\)`).FindStringSubmatch(failures[0]); accept != nil && strings.Contains(failures[0], "1 of 7") {
				pattern, err := strconv.Unquote(accept[1])
				require.NoError(t, err)
				assert.Empty(t, planted(harness.Allow(pattern, "the message says how to accept it")))
			}
		})
	}
}

func TestFailedStartIsTornDown(t *testing.T) {
	cause := errors.New("no weights")
	var opened *toy
	failures := faketb.Run(func(ft *faketb.T) {
		harness.Start(ft, func(ctx context.Context) (*toy, error) {
			opened, _ = openToy(ctx)
			return opened, cause
		}, quick...)
	})
	require.Len(t, failures, 1)
	assert.Contains(t, failures[0], "did not start: no weights")
	assert.Contains(t, failures[0], "references", "opened still holds it")
	assert.Empty(t, opened.Holdings(), "an engine that comes with an error is shut down")

	_, err := harness.Open(t.Context(), func(context.Context) (*toy, error) { return nil, cause }, quick...)
	assert.ErrorIs(t, err, cause)
	_, err = harness.Open(t.Context(), func(context.Context) (*toy, error) { return nil, nil }, quick...)
	assert.ErrorContains(t, err, "returned a nil *harness_test.toy and no error")
	_, err = harness.Open(t.Context(), func(context.Context) (*toy, error) { panic("half-way") }, quick...)
	assert.ErrorContains(t, err, "half-way")
	_, err = harness.Open(t.Context(), func(ctx context.Context) (*toy, error) { <-ctx.Done(); return nil, ctx.Err() },
		append(quick, harness.StartTimeout(20*time.Millisecond))...)
	assert.ErrorContains(t, err, "harness.StartTimeout")
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

func (speaker) Chat(_ context.Context, m []llm.Message, _ llm.SamplingParams) (llm.Output, error) {
	return llm.Output{Prompt: m[0].Role + ": " + m[0].Content}, nil
}

func TestVerbsOfOtherEngines(t *testing.T) {
	failures := faketb.Run(func(ft *faketb.T) {
		r := harness.Start(ft, func(ctx context.Context) (*speaker, error) {
			e, err := openToy(ctx)
			return &speaker{e}, err
		}, noGPU...)
		assert.Equal(t, [][]float32{{2}}, r.Embed("a", "b"))
		assert.Equal(t, []float32{1, 2}, r.Score("q", "a", "b"))
		assert.Equal(t, "user: hi", r.Chat([]llm.Message{{Role: "user", Content: "hi"}}, llm.SamplingParams{}).Prompt)
		r.Classify("x")
	})
	assert.Equal(t, []string{`harness: classify: no classes for ["x"]`}, failures)
}

func TestMissingCapabilityIsNamed(t *testing.T) {
	failures := faketb.Run(func(ft *faketb.T) { harness.Start(ft, openToy, noGPU...).Sleep(1) })
	require.Len(t, failures, 1)
	assert.Equal(t, "harness: this engine cannot sleep: add Sleep(context.Context, int) error and Wake(context.Context, ...string) error "+
		"to *harness_test.toy (harness.Sleeper)", failures[0])
	failures = faketb.Run(func(ft *faketb.T) {
		harness.Start(ft, func(context.Context) (oddSleeper, error) { return oddSleeper{}, nil }, noGPU...).Sleep(1)
	})
	require.Len(t, failures, 1)
	assert.Contains(t, failures[0], "Sleep(context.Context, int) error (it has Sleep(int) error)")
}

func TestErrorsOfTheEngineFailTheTest(t *testing.T) {
	failures := faketb.Run(func(ft *faketb.T) {
		r := harness.Start(ft, openToy, noGPU...)
		_, err := r.TryGenerate(llm.Request{})
		assert.ErrorContains(t, err, "empty prompt")
		r.GenerateGreedy("", 1)
	})
	require.Len(t, failures, 1)
	assert.Contains(t, failures[0], "empty prompt")
	failures = faketb.Run(func(ft *faketb.T) { harness.Start(ft, openToy, noGPU...).GenerateGreedy("say nothing", 1) })
	assert.Equal(t, []string{"harness: generate: *harness_test.toy.Generate gave no completion for request 1 of 1"}, failures)
	for _, ask := range []func(*harness.Runner){
		func(r *harness.Runner) { r.GenerateGreedyLogprobs("x", 1, 3) },
		func(r *harness.Runner) { r.GenerateWithLogprobs("x", llm.SamplingParams{MaxTokens: 1}, 3) },
	} {
		failures = faketb.Run(func(ft *faketb.T) { ask(harness.Start(ft, openToy, noGPU...)) })
		assert.Equal(t, []string{"harness: generate: *harness_test.toy.Generate returned log-probabilities for 0 of 1 token(s) of completion 0 (asked for the 3 likeliest of each)"}, failures)
	}
	failures = faketb.Run(func(ft *faketb.T) { harness.Start(ft, openToy, noGPU...).BeamSearch(llm.Request{Prompt: "x"}, 2, 2) })
	assert.Equal(t, []string{"harness: beam search: *harness_test.toy.Generate gave no log-probabilities"}, failures)
}

func TestStopTwiceAndUseAfter(t *testing.T) {
	failures := faketb.Run(func(ft *faketb.T) {
		r := harness.Start(ft, openToy, noGPU...)
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
	opts := []harness.Option{harness.TeardownTimeout(2 * time.Second), harness.DeviceSource(device)}
	assert.Empty(t, faketb.Run(func(ft *faketb.T) { harness.Start(ft, openToy, opts[1:]...) }), "held before, held after: not this engine's")
	failures := faketb.Run(func(ft *faketb.T) {
		harness.Start(ft, openToy, opts...)
		device.used = 9 << 30
	})
	require.Len(t, failures, 1)
	for _, want := range []string{"device memory", "GPU-1", "still hold 8.0 GiB", "9.0 GiB  pid", "1.0 GiB before this engine started", "harness.DeviceSlack(bytes)"} {
		assert.Contains(t, failures[0], want)
	}
	device.used = 1 << 30
	assert.Empty(t, faketb.Run(func(ft *faketb.T) {
		harness.Start(ft, openToy, append(opts[1:], harness.DeviceSlack(8<<30))...)
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
	opts := []harness.Option{harness.TeardownTimeout(2 * time.Second), harness.DeviceSource(device)}
	openOnGPU := func(ctx context.Context) (*toy, error) {
		e, err := openToy(ctx)
		e.ledger.Add(ledger.Holding{Owner: "kv_cache", Kind: "plain", Device: "GPU-1", Bytes: 20 << 30})
		return e, err
	}
	var long *harness.Fixture
	failures := faketb.Run(func(ft *faketb.T) {
		harness.Start(ft, openToy, opts[1:]...)
		var err error
		long, err = harness.Open(t.Context(), openOnGPU, opts...)
		require.NoError(t, err)
		device.used = 20<<30 + 527<<20 // its memory, and the context
	})
	assert.Empty(t, failures, "what long owns is not this fixture's")
	failures = faketb.Run(func(ft *faketb.T) {
		harness.Start(ft, openToy, opts...)
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
	stay := make(chan struct{})
	defer close(stay)
	results := make([][]string, 4)
	for i := range results {
		wg.Go(func() {
			results[i] = faketb.Run(func(ft *faketb.T) {
				ft.TestName = fmt.Sprintf("TestParallel%d", i)
				harness.Start(ft, func(ctx context.Context) (*toy, error) {
					e, err := openToy(ctx)
					if i == 2 {
						go func() { <-stay }()
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
