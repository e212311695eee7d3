// Command subject runs the conformance suite against the bundled engine and prints the report as
// JSON. Mutants of the engine are built into it with go build -overlay.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"time"

	"github.com/enginetest/enginetest/conformance"
	"github.com/enginetest/enginetest/conformance/internal/bundled"
	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/llm"
)

func main() {
	bundled.ServeIfTold()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "subject:", err)
		os.Exit(1)
	}
}

func run() error {
	child := flag.Bool("child", false, "run the engine's core in a child process")
	served := flag.Bool("served", false, "run the engine as a server in a process of its own")
	embeds := flag.Bool("embed", false, "open the bundled model to embed")
	classifies := flag.Bool("classify", false, "open a classifier of three classes")
	scores := flag.Bool("score", false, "open a classifier that scores pairs of texts")
	devices := flag.Int("devices", 1, "number of emulated devices that share the model")
	only := flag.String("only", "", "check only properties that match `regexp`")
	draws := flag.Int("draws", 5000, "tokens to draw")
	short := flag.Bool("short", true, "run the short suite")
	limit := flag.Duration("limit", time.Minute, "of each property")
	name := flag.String("name", "bundled", "of the engine in the report")
	flag.Parse()
	expr, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	core := engine.InProcess
	if *child {
		core = engine.ChildProcess
	}
	dir, err := os.MkdirTemp("", "conformance")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	cfg := bundled.Config(core, *devices)
	opts, err := bundled.Options(dir, cfg)
	switch {
	case *embeds:
		cfg, err = bundled.PoolingConfig(dir, llm.TaskEmbed, 0)
	case *classifies:
		cfg, err = bundled.PoolingConfig(dir, llm.TaskClassify, 3)
	case *scores:
		cfg, err = bundled.PoolingConfig(dir, llm.TaskClassify, 1)
	}
	if err != nil {
		return err
	}
	if *served || *embeds || *classifies || *scores {
		opts = bundled.ServerOptions()
	}
	opts = append(opts, conformance.Name(*name), conformance.Only(expr), conformance.Draws(*draws),
		conformance.Short(*short), conformance.Limit(*limit))
	report, err := check(cfg, *served, opts)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(report)
}

func check(cfg engine.Config, served bool, opts []conformance.Option) (conformance.Report, error) {
	if !served {
		return conformance.Check(context.Background(), bundled.Open(cfg), opts...)
	}
	open, err := bundled.Served()
	if err != nil {
		return conformance.Report{}, err
	}
	return conformance.Check(context.Background(), open, opts...)
}
