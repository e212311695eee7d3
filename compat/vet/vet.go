// Package vet has the static checks of "enginetest audit" as analyzers, for go vet, golangci-lint
// and gopls. It is a module of its own, so that enginetest does not depend on golang.org/x/tools.
package vet

import (
	"strings"

	"github.com/enginetest/enginetest/internal/lint"
	"golang.org/x/tools/go/analysis"
)

// Analyzers returns one analyzer per check. They look at test files only; a comment
// "audit:ignore CHECK reason" on the line, or on the one above it, accepts a finding.
func Analyzers() (list []*analysis.Analyzer) {
	for _, c := range lint.Checks() {
		list = append(list, analyzer(c))
	}
	return list
}

func analyzer(c *lint.Check) *analysis.Analyzer {
	return &analysis.Analyzer{
		Name: strings.ReplaceAll(c.Name, "-", ""), // an analyzer's name is an identifier
		Doc:  c.Doc,
		URL:  "https://pkg.go.dev/github.com/enginetest/enginetest/compat/vet",
		Run: func(p *analysis.Pass) (any, error) {
			unit := lint.Unit{Path: p.Pkg.Path(), Fset: p.Fset, Files: p.Files, Info: p.TypesInfo}
			for _, f := range c.Run(unit) {
				p.Report(analysis.Diagnostic{Pos: f.Pos, Category: f.Check, Message: f.Message})
			}
			return nil, nil //nolint:nilnil // an analyzer without a result
		},
	}
}
