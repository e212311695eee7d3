package mutants

import (
	"fmt"
	"slices"
	"strings"
)

// Table is a Markdown table of what is meant to find each mutant, and what else does.
func Table(list []Result) string {
	var rows []string
	for _, x := range list {
		rows = append(rows, x.row())
	}
	slices.Sort(rows)
	return "| meant to find it | defect | found by others, too |\n|---|---|---|\n" + strings.Join(rows, "")
}

func (x Result) row() string {
	others := strings.Join(x.Others, ", ")
	switch {
	case x.Died:
		others = "the process died"
	case len(x.Others) > 3:
		others = fmt.Sprintf("%d others", len(x.Others))
	}
	if !x.Found {
		others = "NOT FOUND; " + others
	}
	return fmt.Sprintf("| %s | %s | %s |\n", x.Meant, x.Mutant, others)
}
