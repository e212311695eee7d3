package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/enginetest/enginetest/cmd/enginetest/internal/bench"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/spf13/cobra"
)

func benchCommand() *cobra.Command {
	var (
		o      bench.Options
		shape  string
		dtype  string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "bench [--model DIR | --shape tiny|110m|1b] …",
		Short: "Measure the bundled engine: its life, prefill and decoding, beside their floors",
		Long: `Measure the bundled engine on a checkpoint (default: the bundled one) or on random weights of a shape: what a whole life costs (open, one
token, shutdown, proof that nothing is left), prefill and decoding at each batch size. Medians of several runs; decoding has its floor beside it:
the bytes of the weights ÷ the memory bandwidth measured in the same run. From 8 lives on, growth from one to the next is measured too, and fails.`,
		Args: noArguments(""),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if min(o.Prompt, o.Output, o.Repeat, o.Cycles) < 1 {
				return usagef("--prompt, --output, --repeat and --cycles must be at least 1")
			}
			for _, b := range o.Batches {
				if b < 1 {
					return usagef("--batch %d must be at least 1", b)
				}
			}
			remove := func() error { return nil }
			switch {
			case shape != "" && o.Config.Model != "":
				return usagef("give --model or --shape, not both")
			case shape != "":
				if o.Config.Model, remove, err = randomModel(shape, dtype); err != nil {
					return err
				}
			case o.Config.Model == "":
				o.Config.Model = fixtures.Bundled()
			}
			say := func(what string) { fmt.Fprintln(cmd.ErrOrStderr(), "measuring", what) }
			report, err := bench.Run(cmd.Context(), o, say)
			err = errors.Join(err, remove())
			if len(report.Results) > 0 { // lives that grow are an error, with numbers
				err = errors.Join(err, printReport(cmd.OutOrStdout(), report, asJSON))
			}
			return err
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&shape, "shape", "",
		"random weights: tiny (0.1 M parameters), 110m (768/2048/12 layers/32000) or 1b (1.24 billion)")
	f.StringVar(&dtype, "dtype", "bf16", "of --shape: bf16, f16 or f32")
	f.IntVar(&o.Prompt, "prompt", 128, "tokens of a prompt")
	f.IntVar(&o.Output, "output", 64, "tokens of an output")
	f.IntSliceVar(&o.Batches, "batch", []int{1, 8}, "requests at a time")
	f.IntVar(&o.Repeat, "repeat", 5, "runs of each measurement")
	f.IntVar(&o.Cycles, "cycles", 20, "lives of an engine; 200 is a soak")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	engineFlags(f, &o.Config)
	cmd.AddCommand(scaleCommand())
	return cmd
}

// randomModel writes a checkpoint of the shape into a temporary folder.
func randomModel(shape, dtype string) (dir string, remove func() error, err error) {
	shapes := map[string]fixtures.Spec{"tiny": {}, "110m": fixtures.Shape110M(), "1b": fixtures.Shape1B()}
	types := map[string]string{"bf16": fixtures.BF16, "f16": fixtures.F16, "f32": fixtures.F32}
	spec, ok := shapes[shape]
	if !ok {
		return "", nil, usagef("--shape %q is not tiny, 110m or 1b", shape)
	}
	if spec.DType, ok = types[dtype]; !ok {
		return "", nil, usagef("--dtype %q is not bf16, f16 or f32", dtype)
	}
	if dir, err = os.MkdirTemp("", "enginetest-bench-"); err != nil {
		return "", nil, err
	}
	remove = func() error { return os.RemoveAll(dir) }
	if err = fixtures.WriteCheckpoint(dir, spec); err != nil {
		return "", nil, errors.Join(err, remove())
	}
	return dir, remove, nil
}
