package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/report"
)

// campaign builds the command into PATH, changes into a module with a suite, and runs the suite
// once, in one piece. What a scheduler makes of it in parts must come to the same.
func campaign(t *testing.T) (dir string, whole *report.Report) {
	t.Helper()
	bin := t.TempDir()
	out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	dir = module(t, campaignSuite())
	start := time.Now()
	out, _ = exec.Command("enginetest", "run", "--retries=1", "--json=history/whole.json", "--", "go", "test", "./...").CombinedOutput()
	whole = readReport(t, filepath.Join(dir, "history", "whole.json"))
	require.Equal(t, 200, whole.Counts.Tests, string(out))
	require.Equal(t, 4+4+1, whole.Counts.Failed, "with the package that cannot be built")
	t.Logf("one run: %s", time.Since(start).Round(time.Second))
	return dir, whole
}

// compareCampaign merges the reports of all shards, which are in a folder, and compares them with the one run.
func compareCampaign(t *testing.T, folder string, shards int, whole *report.Report) {
	t.Helper()
	merge := filepath.Join(t.TempDir(), "merged.json")
	code, stdout, stderr := command("", "report", "--json="+merge, "--max-capacity-skips=-1", folder)
	assert.Equal(t, exitFailed, code, stdout+stderr)
	assert.NotContains(t, stdout, "missing", "no shard is lost")
	merged := readReport(t, merge)
	assert.Len(t, merged.Shards, shards)
	assert.Equal(t, outcomes(whole), outcomes(merged))
	merged.Counts.Triage = nil // the one run is its history
	assert.Equal(t, whole.Counts, merged.Counts)
}

// outcomes is what must be the same however a suite is run: each test once, with its end, its class
// and its attempts.
func outcomes(r *report.Report) map[string]string {
	all := map[string]string{}
	for _, t := range r.Tests {
		all[t.ID()] += fmt.Sprintf("%s %s %s %d;", t.Status, t.Class, t.Signature, len(t.Attempts))
	}
	return all
}

// campaignSuite is a module of 200 tests in 20 packages: most pass, and there is one of each other end.
func campaignSuite() map[string]string {
	files := map[string]string{"broken/a_test.go": "package broken\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) { undefined() }\n"}
	for p := range 20 {
		text := fmt.Sprintf("package p%d\n\nimport (\n\t\"testing\"\n\t\"time\"\n)\n\n", p)
		for i := range 10 {
			body := fmt.Sprintf("time.Sleep(%d * time.Millisecond)", 100+50*((p+i)%8))
			switch {
			case i == 7 && p%5 == 0:
				body += `; t.Errorf("got %d, want 2", 1)`
			case i == 8 && p%5 == 1:
				body = `t.Skip("needs 2 GPUs, there is 1")`
			case i == 9 && p%5 == 2:
				body += `; t.Fatal("write weights.bin: no space left on device")`
			}
			text += fmt.Sprintf("func Test%d(t *testing.T) { %s }\n", i, body)
		}
		files[fmt.Sprintf("p%d/a_test.go", p)] = text
	}
	return files
}
