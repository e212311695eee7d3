package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/enginetest/enginetest/cmd/enginetest/internal/results"
	"github.com/enginetest/enginetest/report"
	"github.com/spf13/cobra"
)

func reportCommand() *cobra.Command {
	var o results.Options
	var pkg string
	cmd := &cobra.Command{
		Use:   "report [flags] [FILE…]",
		Short: "Say what failed in test results, of which class, and whether it failed before",
		Long: `Read the results of tests and say what failed, of which class (leak, engine, test, timeout, capacity, infra), and how to reproduce it.

A FILE is the output of go test -json or go test -v, a log of a bundle, a JUnit file, or a report of this command; the inputs may be shards of
one run. A folder stands for the .json, .jsonl, .log and .xml files in it; without files, standard input is read.

Exit codes: 0 all passed, 1 something failed or too little was tested, 2 wrong usage. docs/reports.md has the rest.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.Check(); err != nil {
				return usageError{err}
			}
			r, err := readResults(cmd, args, pkg)
			if err != nil {
				return usageError{err}
			}
			if err := o.Finish(r, 0, false, cmd.OutOrStdout(), cmd.ErrOrStderr()); err != nil {
				return err
			}
			return verdictOf(r)
		},
	}
	o.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&pkg, "package", "", "the package of logs that do not say it (default: the file's name)")
	return cmd
}

func readResults(cmd *cobra.Command, args []string, pkg string) (*report.Report, error) {
	var c report.Collector
	if len(args) == 0 || len(args) == 1 && args[0] == "-" {
		err := c.Read(cmd.InOrStdin(), report.Source{Name: "stdin", Package: pkg})
		return c.Report(), err
	}
	files, err := results.Inputs(args)
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no .json, .jsonl, .log or .xml file in %s", strings.Join(args, ", "))
	}
	var errs []error
	for _, name := range files {
		base := strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))
		f, err := os.Open(name)
		if err == nil {
			err = errors.Join(c.Read(f, report.Source{Name: name, Package: orElse(pkg, base)}), f.Close())
		}
		if err != nil {
			errs = append(errs, err)
			fmt.Fprintln(cmd.ErrOrStderr(), "enginetest report:", err)
		}
	}
	if len(errs) == len(files) {
		return nil, errors.New("no input could be read")
	}
	return c.Report(), nil
}

// errVerdict carries the exit code of a run that did not pass; the report has said why.
var errVerdict = errors.New("")

func verdictOf(r *report.Report) error {
	if r.Result == report.ResultPass {
		return nil
	}
	return silent{codeError{errVerdict, exitFailed}}
}

// silent marks an error whose message has been printed.
type silent struct{ error }

func (e silent) Unwrap() error { return e.error }

func orElse(s, other string) string {
	if s != "" {
		return s
	}
	return other
}
