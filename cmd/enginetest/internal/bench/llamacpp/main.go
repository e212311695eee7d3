// Llamacpp measures the bundled engine beside llama.cpp's llama-bench on the same random weights:
// decoding from an empty context, and a prompt of 128 tokens. The two take turns, round after
// round, so that whatever else the machine does hits both; the table has medians, bests and ratios
// of both, and the floor of decoding, from the memory bandwidth of the same minutes.
//
//	go run ./cmd/enginetest/internal/bench/llamacpp -llama-bench /path/to/llama-bench
//
// Our side is the whole engine: Generate with a prompt of token ids, greedy, logits and sampling
// included. llama-bench computes logits and draws nothing.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"

	"github.com/enginetest/enginetest/fixtures"
)

func main() {
	o := options{spec: fixtures.Shape110M()}
	flag.StringVar(&o.llamaBench, "llama-bench", "llama-bench", "llama.cpp's llama-bench, or a script that runs it")
	flag.StringVar(&o.dir, "dir", "",
		"folder that llama-bench can read too, for the models (0.9 GB; default: a temporary one)")
	flag.IntVar(&o.rounds, "rounds", 7, "turns of each side")
	flag.IntVar(&o.prompt, "prompt", 128, "tokens of a prompt")
	flag.IntVar(&o.output, "output", 32, "tokens to decode")
	threads := flag.String("threads", "1,2", "numbers of threads")
	types := flag.String("types", "F32:F32,BF16:F16", "weight types to compare, ours:theirs")
	asJSON := flag.Bool("json", false, "print JSON with every run, rather than the table")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o, *threads, *types, *asJSON); err != nil {
		fmt.Fprintln(os.Stderr, "llamacpp:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has been called
	}
}

func run(ctx context.Context, o options, threads, types string, asJSON bool) error {
	for _, s := range strings.Split(threads, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return fmt.Errorf("-threads %s: want numbers above 0 with commas between", threads)
		}
		o.threads = append(o.threads, n)
	}
	for _, s := range strings.Split(types, ",") {
		ours, theirs, ok := strings.Cut(s, ":")
		if !ok {
			return fmt.Errorf("-types %s: want pairs like BF16:F16 with commas between", types)
		}
		o.types = append(o.types, pair{ours, theirs})
	}
	r, err := compare(ctx, o, func(what string) { fmt.Fprintln(os.Stderr, what) })
	if err != nil {
		return err
	}
	if asJSON {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	fmt.Print(r)
	return nil
}
