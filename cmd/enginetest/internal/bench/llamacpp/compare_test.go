package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/fixtures"
)

// fakeBench is a llama-bench that prints numbers; it fails unless it is asked for a GGUF file that
// is there.
func fakeBench(t *testing.T, script string) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("a shell script stands in for llama-bench")
	}
	path := filepath.Join(t.TempDir(), "llama-bench")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700)) //nolint:gosec // it has to run
	return path
}

const twoRuns = `head -c 4 "$2" | grep -q GGUF || exit 7
echo '[{"n_prompt":8,"n_gen":0,"avg_ts":100,"build_number":42},{"n_prompt":0,"n_gen":2,"avg_ts":10,"build_number":42}]'`

func tiny(bench string) options {
	return options{
		llamaBench: bench, rounds: 2, prompt: 8, output: 2, threads: []int{1},
		types: []pair{{fixtures.F32, fixtures.F32}, {fixtures.BF16, fixtures.F16}},
	}
}

func TestCompare(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	r, err := compare(t.Context(), tiny(fakeBench(t, twoRuns)), func(string) {})
	require.NoError(t, err)
	left, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	assert.Empty(t, left, "the models are removed")
	assert.Equal(t, 42, r.Build)
	require.Len(t, r.Rows, 4)
	for _, w := range r.Rows {
		assert.Len(t, w.Ours, 2)
		assert.Len(t, w.Theirs, 2)
		assert.Positive(t, w.Ours.median())
		assert.InDelta(t, map[string]float64{"prefill": 100, "decode": 10}[w.What], w.Theirs.median(), 0)
		assert.Equal(t, w.What == "decode", len(w.Floor) == 2)
	}
	_, err = json.Marshal(r)
	require.NoError(t, err)
}

func TestTable(t *testing.T) {
	r := &report{Build: 42, Load: []string{"0.10", "2.00"}, Rows: []*row{
		{What: "prefill", Types: "f32 vs f32", Threads: 1, Ours: rates{30, 10, 20}, Theirs: rates{10, 10, 10}},
		{
			What: "decode", Types: "f32 vs f32", Threads: 2, Ours: rates{1, 2, 3, 4}, Theirs: rates{2, 2, 2, 2},
			Floor: rates{5, 5, 5, 5},
		},
	}}
	assert.Equal(t, `| tokens/s: median (best) | threads | enginetest | llama.cpp | ratio | floor | share |
|---|---|---|---|---|---|---|
| decode, f32 vs f32 | 2 | 2.5 (4.0) | 2.0 (2.0) | 1.25 (2.00) | 5.0 (5.0) | 50 % (80 %) |
| prefill, f32 vs f32 | 1 | 20.0 (30.0) | 10.0 (10.0) | 2.00 (3.00) | – | – |

4 rounds in turns; llama.cpp build 42; load average of the machine 0.10 before, 2.00 after.
`, r.String())
}

func TestLlamaBenchThatFails(t *testing.T) {
	for _, row := range []struct{ why, script, want string }{
		{"its message is in ours", "echo 'no such model' >&2; exit 3", "no such model"},
		{"no JSON", "echo hello", "its JSON"},
		{
			"runs that were not asked for", `echo '[{"n_prompt":9,"n_gen":0,"avg_ts":1}]'`,
			"want a prompt's run and a decoding one",
		},
	} {
		_, err := compare(t.Context(), tiny(fakeBench(t, row.script)), func(string) {})
		assert.ErrorContains(t, err, row.want, row.why)
	}
	o := tiny("/no/such/llama-bench")
	_, err := compare(t.Context(), o, func(string) {})
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func TestFlags(t *testing.T) {
	for _, row := range []struct{ threads, types, want string }{
		{"0", "F32:F32", "-threads 0"},
		{"1,x", "F32:F32", "-threads 1,x"},
		{"1", "F32", "-types F32"},
		{"1", "F99:F32", "F99"},
		{"1", "F32:F99", "F99"},
	} {
		err := run(t.Context(), options{rounds: 1, prompt: 8, output: 2}, row.threads, row.types, false)
		assert.ErrorContains(t, err, row.want, strings.Join([]string{row.threads, row.types}, " "))
	}
}
