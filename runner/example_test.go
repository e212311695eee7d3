package runner_test

import (
	"context"
	"fmt"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/internal/faketb"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/runner"
)

func ExampleNew() {
	t := &faketb.T{TestName: "TestSum"} // a *testing.T in a test
	r := runner.New(t, runner.Config{Model: fixtures.Bundled(), Device: "cpu"})
	fmt.Println(r.GenerateGreedy("2+3=", 8).Text)
	fmt.Println(r.Stop().Err()) // t.Cleanup does it otherwise
	// Output:
	// 5
	// <nil>
}

// echo is someone else's engine: it needs two methods.
type echo struct{}

func (*echo) Generate(_ context.Context, reqs ...engine.Request) (outs []engine.Output, _ error) {
	for _, r := range reqs {
		outs = append(outs, engine.Output{Completions: []llm.Completion{{Text: r.Prompt}}})
	}
	return outs, nil
}

func (*echo) Shutdown(context.Context) error { return nil }

func ExampleStart() {
	t := &faketb.T{TestName: "TestEcho"} // a *testing.T in a test
	r := runner.Start(t, func(context.Context) (*echo, error) {
		return &echo{}, nil
	}, runner.WithoutDeviceMemory("an example"))
	fmt.Println(r.GenerateGreedy("hello", 8).Text)
	fmt.Println(r.Stop().Err())
	// Output:
	// hello
	// <nil>
}

func ExampleOpen() {
	ctx := context.Background()
	open := func(ctx context.Context) (*engine.Engine, error) {
		return engine.Open(ctx, engine.Config{Model: fixtures.Bundled(), Device: "cpu"})
	}
	fixture, err := runner.Open(ctx, open, runner.WithoutDeviceMemory("an example"))
	if err != nil {
		fmt.Println(err)
		return
	}
	report := fixture.Close(ctx)
	for _, step := range report.Steps[:4] {
		fmt.Printf("%s: %s%s\n", step.Name, step.Skipped, step.Detail)
	}
	fmt.Println(report.Err())
	// Output:
	// shutdown: abort: 0 requests ended, release: 73.6 MiB of 73.6 MiB given back
	// holdings: the engine's ledger is empty
	// processes: the engine named no processes
	// goroutines: none of this fixture runs
	// <nil>
}
