package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/enginetest/enginetest/gpuwait"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const waitCodes = `Exit codes: 0 clear, 1 not clear (the message says who holds the memory), 2 wrong usage, 3 cannot measure (no GPU, no driver,
a lost device).`

func gpusCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "gpus [DEVICE…]",
		Short: "List the GPUs, their memory, who holds it and who has leased them, and what the engine runs on them",
		Long: `List the GPUs, their memory, who holds it and who has leased them, and what the engine would use of them here: the CUDA driver, the
kernels that each visible device gets, optional libraries. A device is a UUID (or a prefix of one), an index or a MIG id.

Exit codes: 0 listed, 2 wrong usage (no such device), 3 cannot measure (no GPU or no driver: the message says what was tried).`,
		RunE: func(cmd *cobra.Command, names []string) error {
			src, err := gpuwait.Open()
			if err != nil {
				return waitError(err)
			}
			inv, err := gpuwait.Inspect(src, gpuwait.Devices(names...))
			if err = errors.Join(err, src.Close()); err != nil {
				return waitError(err)
			}
			// CUDA takes memory for itself: it comes after
			return printReport(cmd.OutOrStdout(), gpuReport{inv, inspectCUDA()}, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func waitCommand() *cobra.Command {
	var (
		ratio    float64
		bytes    string
		timeout  time.Duration
		settled  time.Duration
		patience time.Duration
		asJSON   bool
	)
	cmd := &cobra.Command{
		Use:   "wait [--ratio R] [--bytes N] [--timeout D] [DEVICE…]",
		Short: "Wait until GPU memory is clear, for scripts and workflows",
		Long: `Wait until each GPU (all that are visible, or the named ones) uses no more than a share of its memory, or so many bytes; with both,
the larger counts. It gives up early when the reading has not moved for a while and a live process holds the memory.

` + waitCodes,
		RunE: func(cmd *cobra.Command, names []string) error {
			cond, err := waitCondition(cmd, ratio, bytes, settled)
			if err != nil {
				return err
			}
			src, err := gpuwait.Open()
			if err != nil {
				return waitError(err)
			}
			opts := []gpuwait.ClearOption{
				gpuwait.Devices(names...), gpuwait.Timeout(timeout),
				gpuwait.Reproduce(commandLine(cmd, names)),
			}
			if cmd.Flags().Changed("patience") {
				opts = append(opts, gpuwait.Patience(patience))
			}
			report, err := gpuwait.Clear(cmd.Context(), src, cond, opts...)
			if err = errors.Join(err, src.Close()); err != nil {
				if asJSON {
					_ = printReport(cmd.OutOrStdout(), report, true) // the exit code is the answer
				}
				return waitError(err)
			}
			return printReport(cmd.OutOrStdout(), report, asJSON)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Float64Var(&ratio, "ratio", 0.1,
		"share of the total memory that may be in use, in [0, 1): 1 − gpu-memory-utilization of what starts next")
	f.StringVar(&bytes, "bytes", "", "memory that may be in use: 2GiB, 512MiB, 1073741824")
	f.DurationVar(&settled, "settled", 0, "and it must not have moved for so long")
	f.DurationVar(&timeout, "timeout", 2*time.Minute, "give up after")
	f.DurationVar(&patience, "patience", 0, "give up early when nothing has moved for so long and a live process holds the memory; 0 never (default: see docs/waiting.md)")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func waitCondition(cmd *cobra.Command, ratio float64, bytes string, settled time.Duration) (gpuwait.Condition, error) {
	if !(ratio >= 0 && ratio < 1) { // here and not only in gpuwait: wrong use is wrong use where there is no GPU, too
		return gpuwait.Condition{}, usagef("--ratio is %v, must be in [0, 1)", ratio)
	}
	cond := gpuwait.Ratio(ratio)
	if bytes != "" {
		n, err := parseBytes(bytes)
		if err != nil {
			return cond, usagef("--bytes: %w", err)
		}
		if cmd.Flags().Changed("ratio") {
			cond = cond.Or(gpuwait.Bytes(n))
		} else {
			cond = gpuwait.Bytes(n)
		}
	}
	if settled > 0 {
		cond = cond.Settled(settled, 64<<20)
	}
	return cond, nil
}

// commandLine is the command as it was called, but for the shell's quotes.
func commandLine(cmd *cobra.Command, names []string) string {
	words := []string{cmd.CommandPath()}
	cmd.Flags().Visit(func(f *pflag.Flag) { words = append(words, "--"+f.Name+"="+f.Value.String()) })
	return strings.Join(append(words, names...), " ")
}

// waitError returns an error gpuwait's exit code, and names flags where gpuwait names its options.
func waitError(err error) error {
	return codeError{errors.New(asFlags.Replace(err.Error())), gpuwait.ExitCode(err)}
}

var asFlags = strings.NewReplacer(
	"gpuwait.Timeout(d)", "--timeout", "gpuwait.KeepWaiting()", "--patience=0", "gpuwait.Patience(d)", "--patience",
	"gpuwait.Delta(baseline, slack) or a larger bound; memory kept on purpose: gpuwait.Own(uuid, name, bytes)",
	"a larger --ratio or --bytes",
)

// printReport prints what has a text form and a JSON form.
func printReport(w io.Writer, v fmt.Stringer, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(v)
	}
	_, err := fmt.Fprintln(w, v)
	return err
}

// parseBytes reads "2GiB", "512 MiB", "1.5g" or a number of bytes.
func parseBytes(s string) (int64, error) {
	number := strings.TrimRight(s, "BbIiKkMmGgTt ")
	unit := strings.ToLower(strings.TrimSpace(s[len(number):]))
	scale, ok := map[string]float64{
		"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30,
		"t": 1 << 40,
	}[strings.TrimSuffix(strings.TrimSuffix(unit, "b"), "i")]
	n, err := strconv.ParseFloat(number, 64)
	if n *= scale; !ok || err != nil || !(n >= 0 && n < math.MaxInt64) {
		return 0, fmt.Errorf("%q is not a size like 2GiB, 512MiB or 1073741824", s)
	}
	return int64(n), nil
}
