// Package plugin makes the analyzers a module plugin of golangci-lint. docs/reports.md has the two
// files that it needs.
package plugin

import (
	"fmt"
	"slices"

	"github.com/enginetest/enginetest/compat/vet"
	"github.com/golangci/plugin-module-register/register"
	"golang.org/x/tools/go/analysis"
)

// Name is the linter's name in .golangci.yml.
const Name = "enginetest"

func init() { register.Plugin(Name, open) }

// settings are those of the linter in .golangci.yml.
type settings struct {
	Disable []string `json:"disable"` // names of analyzers
}

func open(raw any) (register.LinterPlugin, error) {
	s, err := register.DecodeSettings[settings](raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Name, err)
	}
	p := plugin{}
	for _, a := range vet.Analyzers() {
		if i := slices.Index(s.Disable, a.Name); i >= 0 {
			s.Disable = slices.Delete(s.Disable, i, i+1)
			continue
		}
		p = append(p, a)
	}
	if len(s.Disable) > 0 {
		return nil, fmt.Errorf("%s: disable names %q, which is no analyzer", Name, s.Disable[0])
	}
	return p, nil
}

type plugin []*analysis.Analyzer

func (p plugin) BuildAnalyzers() ([]*analysis.Analyzer, error) { return p, nil }

func (plugin) GetLoadMode() string { return register.LoadModeTypesInfo }
