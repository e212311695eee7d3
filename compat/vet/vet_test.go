package vet

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/analysistest"
)

// Every analyzer finds what is planted in its part of the corpus and nothing in the sound code
// beside it.
func TestAnalyzers(t *testing.T) {
	corpus, err := filepath.Abs("../../internal/lint/testdata")
	if err != nil {
		t.Fatal(err)
	}
	if err := analysis.Validate(Analyzers()); err != nil {
		t.Fatal(err)
	}
	folders := map[string]string{
		"exit": "exit/...", "skipreason": "skip", "noproof": "proof", "guardorder": "guard",
		"cleanupcontext": "cleanup", "shutdownerror": "shutdown", "cannotfail": "fail",
	}
	for _, a := range Analyzers() {
		t.Run(a.Name, func(t *testing.T) {
			folder, ok := folders[a.Name]
			if !ok {
				t.Fatal("no corpus")
			}
			found := 0
			for _, r := range analysistest.Run(t, corpus, a, folder) {
				found += len(r.Diagnostics)
			}
			if found == 0 {
				t.Error("nothing was planted for it")
			}
			if summary, _, _ := strings.Cut(a.Doc, "\n"); !strings.HasPrefix(summary, "find ") {
				t.Errorf("its summary is %q", summary)
			}
		})
	}
}
