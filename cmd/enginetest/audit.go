package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/enginetest/enginetest/cmd/enginetest/internal/audit"
	"github.com/enginetest/enginetest/cmd/enginetest/internal/results"
	"github.com/enginetest/enginetest/internal/lint"
	"github.com/spf13/cobra"
)

func auditCommand() *cobra.Command {
	var history string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "audit [flags] [PACKAGE…]",
		Short: "Find tests that prove less than they seem to",
		Long: `Find tests that prove less than they seem to, in the source of packages (default ./...):

    exit             TestMain ends the process without the result of m.Run
    skip-reason      a skip that does not say why
    no-proof         a fixture that leaves its checks out, or accepts any finding
    guard-order      a leakcheck.Guard that checks before what it should see is cleaned up
    cleanup-context  a cleanup with the test's context, which is cancelled by then
    shutdown-error   a Shutdown whose error is dropped
    cannot-fail      a test that never uses its *testing.T

and with --history DIR in the JSON reports of enginetest run:

    never-ran        a test that no report of its package has
    only-skips       a test that every report skips
    loose-bound      a bound ten times above all that three or more runs measured
    never-fired      an injected fault that never struck

A comment "audit:ignore CHECK reason" on the line or above it accepts a finding. Exit codes: 0 nothing found, 1 something, 2 wrong usage.`,
		RunE: func(cmd *cobra.Command, packages []string) error {
			findings, err := auditPackages(cmd.Context(), packages, history)
			if err != nil {
				return err
			}
			if asJSON {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				err = e.Encode(append([]audit.Finding{}, findings...))
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

// auditPackages audits the tests of packages: their source, and what ran of them.
func auditPackages(ctx context.Context, packages []string, history string) ([]audit.Finding, error) {
	if len(packages) == 0 {
		packages = []string{"./..."}
	}
	units, err := lint.Load(ctx, "", packages...)
	if err != nil {
		return nil, err
	}
	findings, tests := audit.Source(units)
	reports, err := results.Load(history)
	if err != nil {
		return nil, fmt.Errorf("--history: %w", err)
	}
	findings = append(findings, audit.Results(tests, reports)...)
	shorten(findings)
	return findings, nil
}

// shorten makes the names of files relative to the current folder, where they are in it.
func shorten(findings []audit.Finding) {
	cwd, err := os.Getwd()
	if err != nil {
		return
	}
	for i, f := range findings {
		if rel, err := filepath.Rel(cwd, f.File); err == nil && !strings.HasPrefix(rel, "..") {
			findings[i].File = rel
		}
	}
}
