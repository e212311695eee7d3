package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/enginetest/enginetest/cmd/enginetest/internal/audit"
	"github.com/enginetest/enginetest/cmd/enginetest/internal/results"
	"github.com/spf13/cobra"
)

func auditCommand() *cobra.Command {
	var history string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "audit [flags] [PACKAGE…]",
		Short: "Find tests that prove less than they seem to",
		Long: `Find tests that prove less than they seem to, in the source of packages (default ./...):

    exit         TestMain ends the process without the result of m.Run
    skip-reason  a skip that does not say why
    no-proof     a fixture that leaves its checks out
    guard-order  a leakcheck.Guard that checks before what it should see is cleaned up
    cannot-fail  a test that never uses its *testing.T

and with --history DIR in the JSON reports of enginetest run:

    never-ran    a test that no report of its package has
    only-skips   a test that every report skips

A comment "audit:ignore CHECK reason" on the line or above it accepts a finding. Exit codes: 0 nothing found, 1 something, 2 wrong usage.`,
		RunE: func(cmd *cobra.Command, packages []string) error {
			findings, err := auditPackages(cmd.Context(), packages, history)
			if err != nil {
				return err
			}
			if asJSON {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				err = e.Encode(findings)
			} else {
				for _, f := range findings {
					fmt.Fprintln(cmd.OutOrStdout(), f)
				}
			}
			if err != nil || len(findings) == 0 {
				return err
			}
			return codeError{fmt.Errorf("%d findings", len(findings)), exitFailed}
		},
	}
	cmd.Flags().StringVar(&history, "history", "", "compare with the JSON reports in `DIR`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// auditPackages audits the test files of packages.
func auditPackages(ctx context.Context, packages []string, history string) ([]audit.Finding, error) {
	if len(packages) == 0 {
		packages = []string{"./..."}
	}
	const format = `{{$p := .}}{{range .TestGoFiles}}{{$p.ImportPath}}|{{$p.Dir}}|{{.}}{{"\n"}}{{end}}{{range .XTestGoFiles}}{{$p.ImportPath}}|{{$p.Dir}}|{{.}}{{"\n"}}{{end}}`
	list, err := lines(ctx, append([]string{"go", "list", "-f", format}, packages...))
	if err != nil {
		return nil, err
	}
	findings, tests, errs := []audit.Finding{}, []audit.Test{}, []error{}
	cwd, _ := os.Getwd()
	for _, line := range list {
		parts := strings.SplitN(line, "|", 3)
		if len(parts) != 3 {
			continue
		}
		name := filepath.Join(parts[1], parts[2])
		if rel, err := filepath.Rel(cwd, name); err == nil && !strings.HasPrefix(rel, "..") {
			name = rel
		}
		found, in, err := audit.Source(parts[0], name, nil)
		findings, tests, errs = append(findings, found...), append(tests, in...), append(errs, err)
	}
	reports, err := results.Load(history)
	findings = append(findings, audit.Results(tests, reports)...)
	return findings, errors.Join(append(errs, err)...)
}
