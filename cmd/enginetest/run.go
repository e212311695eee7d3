package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/enginetest/enginetest/cmd/enginetest/internal/gotest"
	"github.com/enginetest/enginetest/cmd/enginetest/internal/results"
	"github.com/enginetest/enginetest/cmd/enginetest/internal/shard"
	"github.com/enginetest/enginetest/report"
	"github.com/spf13/cobra"
)

func runCommand() *cobra.Command {
	r := testRun{}
	var part string
	cmd := &cobra.Command{
		Use:   "run [flags] -- go test [go test's flags] [PACKAGE…]",
		Short: "Run tests and report: failures by class, retries for what is the machine's fault, shards",
		Long: `Run a test command and report what failed, of which class, while it runs and at its end.

Only failures of the classes infra and capacity are run again with --retries, and the report records every attempt. With --shard i/n the packages
are split over n machines by the times in --history; "enginetest report" merges the --json files of all and says when one is missing.

Exit codes: 0 all passed, 1 something failed or too little was tested, 2 wrong usage. docs/reports.md has the rest.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New(`no test command --, as in "enginetest run -- go test"`)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := r.Check(); err != nil {
				return usageError{err}
			}
			if r.retries < 0 {
				return usagef("--retries is %d, must be at least 0", r.retries)
			}
			r.command, r.stdout, r.stderr = gotest.Parse(args), cmd.OutOrStdout(), cmd.ErrOrStderr()
			if err := r.plan(cmd.Context(), part); err != nil {
				return err
			}
			return r.run(cmd.Context())
		},
	}
	r.AddFlags(cmd.Flags())
	cmd.Flags().IntVar(&r.retries, "retries", 0,
		"run failures of the classes infra and capacity again, at most so often")
	cmd.Flags().StringVar(&part, "shard", "", "run part `I/N` of the packages")
	cmd.Flags().StringVar(&r.events, "events", "", "keep the output of the test command in `FILE`")
	cmd.Flags().BoolVarP(&r.quiet, "quiet", "q", false, "do not print the output of failed tests while they run")
	cmd.Flags().SetInterspersed(false)
	return cmd
}

// testRun is one call of the command.
type testRun struct {
	results.Options
	retries        int
	events         string
	quiet          bool
	command        gotest.Command
	commands       [][]string // what this shard runs
	shard          *report.Shard
	collector      report.Collector
	stdout, stderr io.Writer
}

// plan decides what this call runs: the command, or its part of it.
func (r *testRun) plan(ctx context.Context, part string) error {
	r.commands = [][]string{r.command.JSON(nil)}
	if part == "" {
		return nil
	}
	index, of, err := shard.Parse(part)
	if err != nil {
		return usageError{err}
	}
	if !r.command.Go {
		return usagef("--shard splits a go test command; this one is %s", r.command.Args[0])
	}
	history, err := results.Load(r.History)
	if err != nil {
		return err
	}
	packages, err := lines(ctx, r.command.List("{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}"))
	if err != nil {
		return err
	}
	shards, err := shard.Split(packages, shard.Read(history), of, func(pkg string) ([]string, error) {
		return r.tests(ctx, pkg)
	})
	if err != nil {
		return err
	}
	r.shard = &report.Shard{Index: index, Of: of, Plan: shard.Digest(shards)}
	r.commands = r.part(shards[index-1])
	return nil
}

// part returns the commands for the units of one shard: one for whole packages, one for each
// package that is split.
func (r *testRun) part(units []shard.Unit) (commands [][]string) {
	var whole, order []string
	tests := map[string][]string{}
	for _, u := range units {
		if u.Test == "" {
			whole = append(whole, u.Package)
			continue
		}
		if tests[u.Package] == nil {
			order = append(order, u.Package)
		}
		tests[u.Package] = append(tests[u.Package], u.Test)
	}
	if whole != nil {
		commands = append(commands, r.command.JSON(whole))
	}
	for _, p := range order {
		commands = append(commands, r.command.JSON([]string{p}, "-run=^("+strings.Join(tests[p], "|")+")$"))
	}
	return commands
}

// tests lists the tests of a package that the command would run.
func (r *testRun) tests(ctx context.Context, pkg string) (names []string, err error) {
	if r.command.Flag("overlay") != "" { // the files are not what is compiled
		return r.listed(ctx, pkg)
	}
	files, err := lines(ctx, r.command.Of(pkg).List(gotest.TestFiles))
	if err != nil {
		return nil, err
	}
	return r.command.Tests(files)
}

// listed builds a package's test and asks it for its tests.
func (r *testRun) listed(ctx context.Context, pkg string) (names []string, err error) {
	pattern := orElse(r.command.Flag("run"), ".")
	pattern, _, _ = strings.Cut(pattern, "/")
	args := gotest.Parse(r.command.Retry(pkg, "-list="+pattern)).Args
	args = slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == "-json" })
	_, err = gotest.Exec(ctx, args, r.stderr, func(line string) {
		if name := strings.TrimSpace(line); strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Example") ||
			strings.HasPrefix(name, "Fuzz") {
			names = append(names, name)
		}
	})
	return names, err
}

// lines runs a command and returns the lines of its output that are not empty.
func lines(ctx context.Context, args []string) (list []string, err error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimRight(line, "\r\n"); line != "" {
			list = append(list, line)
		}
	}
	return list, nil
}

func (r *testRun) run(ctx context.Context) error {
	live := &liveOutput{
		stdout: r.stdout, stderr: r.stderr, quiet: r.quiet, github: r.GitHub,
		terminal: results.Terminal(r.stderr),
	}
	r.collector.OnEnd(live.ended)
	r.collector.Command(r.command.Args)
	if r.shard != nil {
		r.collector.Shard(*r.shard)
	}
	keep, err := r.open()
	if err != nil {
		return err
	}
	exit, err := r.execAll(ctx, r.commands, keep)
	if err == nil {
		err = r.retry(ctx, keep)
	}
	live.clear()
	rep := r.collector.Report()
	if err != nil {
		fmt.Fprintln(r.stderr, "enginetest run:", err)
		exit = max(exit, 1)
	}
	if err := errors.Join(keep.Close(), r.Finish(rep, exit, r.shard != nil, r.stdout, r.stderr)); err != nil {
		return err
	}
	return verdictOf(rep)
}

// open opens the file for the command's output, if there is one.
func (r *testRun) open() (io.WriteCloser, error) {
	if r.events == "" {
		return discard{io.Discard}, nil
	}
	return os.Create(r.events)
}

type discard struct{ io.Writer }

func (discard) Close() error { return nil }

// execAll runs commands one after the other and returns the highest exit code. A shard without work
// has run nothing.
func (r *testRun) execAll(ctx context.Context, commands [][]string, keep io.Writer) (exit int, err error) {
	for _, args := range commands {
		format := report.FormatJSON
		if !r.command.Go {
			format = report.FormatText
		}
		src := report.Source{Name: strings.Join(args, " ")}
		if r.shard != nil {
			src.Shard = r.shard.String()
		}
		end := r.collector.Begin(src, format)
		code, err := gotest.Exec(ctx, args, r.stderr, func(line string) {
			_, _ = io.WriteString(keep, line)
			r.collector.WriteLine(line)
		})
		end()
		exit = max(exit, code)
		if err != nil {
			return exit, err
		}
	}
	return exit, nil
}

// retry runs the failures again that are the machine's; the report keeps every attempt.
func (r *testRun) retry(ctx context.Context, keep io.Writer) error {
	r.collector.Retrying(true)
	for round := 1; round <= r.retries && r.command.Go; round++ {
		var commands [][]string
		for _, t := range r.collector.Report().Retryable() {
			fmt.Fprintf(r.stderr, "retry %d of %d: %s (%s: %s)\n", round, r.retries, t.ID(), t.Class, t.Message)
			commands = append(commands, r.command.Retry(t.Package, t.Select()...))
		}
		if commands == nil {
			return nil
		}
		if _, err := r.execAll(ctx, commands, keep); err != nil {
			return err
		}
	}
	return nil
}
