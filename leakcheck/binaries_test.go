package leakcheck_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var binaries = flag.Bool("binaries", false, "run TestBinaries: it builds this test in every way, a minute or two")

// TestBinaries prints the confusion matrix of each kind of binary: for each kind of leak how many
// were planted, found and their culprit named, and the median time of a check that found one.
//
//	go test ./leakcheck -run Binaries -binaries -v -timeout 30m
func TestBinaries(t *testing.T) {
	if !*binaries {
		t.Skip("builds this test in thirteen ways, which takes a minute or two: use -binaries")
	}
	const (
		all   = `all +(\d+) +(\d+) +(\d+) +\S+ +\d+ +0\n`
		kind  = `(?m)^ *(\S.*?) +(\d+) +(\d+) +(\d+) +(\d\S*) +\d+ +\d+$`
		named = "every culprit named"
		found = "every leak found, variables by the functions that use them"
	)
	var matrix strings.Builder
	defer func() { t.Log(matrix.String()) }()
	for _, row := range []struct {
		name  string
		build []string // of go test -c; nil: go test itself
		run   []string // of go test
		env   []string
		want  string
	}{
		{"go test (stripped)", nil, nil, nil, named},
		{"go test -race", nil, []string{"-race"}, nil, named},
		{"go test -cover", nil, []string{"-cover"}, nil, named},
		{"go test -covermode=count", nil, []string{"-cover", "-covermode=count"}, nil, named},
		{"go test -coverpkg=./... in the module's root", nil, []string{"-coverpkg=./..."}, nil, named},
		{"go test -trimpath", nil, []string{"-trimpath"}, nil, named},
		{"go test, not optimized", nil, []string{"-gcflags=all=-N -l"}, nil, named},
		{"go test, CGO_ENABLED=0", nil, nil, []string{"CGO_ENABLED=0"}, named},
		{"go test -ldflags='-s -w'", nil, []string{"-ldflags=-s -w"}, nil, named},
		{"go test -c", []string{}, nil, nil, named},
		{"go test -c -ldflags='-s -w'", []string{"-ldflags=-s -w"}, nil, nil, named},
		{"go test -c -race", []string{"-race"}, nil, nil, named},
		{"stripped, without the go command", []string{"-ldflags=-s -w"}, nil, []string{"PATH=/nowhere"}, found},
	} {
		t.Run(row.name, func(t *testing.T) {
			var cmd *exec.Cmd
			if row.build == nil {
				cmd = exec.Command("go", append(append([]string{"test", "-C", ".."}, row.run...), "-run",
					"^TestCorpus$", "-count=1", "-v", "./leakcheck", "-rounds=1")...)
			} else {
				bin := filepath.Join(t.TempDir(), "leakcheck.test")
				out, err := exec.Command("go", append(append([]string{"test", "-c", "-o", bin}, row.build...),
					".")...).CombinedOutput()
				require.NoError(t, err, "%s", out)
				cmd = exec.Command(bin, "-test.run", "^TestCorpus$", "-test.v", "-rounds=1")
			}
			cmd.Env = append(os.Environ(), row.env...)
			out, err := cmd.CombinedOutput()
			m := regexp.MustCompile(all).FindStringSubmatch(string(out))
			require.NotNil(t, m, "no matrix without false alarms: %v\n%s", err, out[max(0, len(out)-3000):])
			planted, foundN, namedN := m[1], m[2], m[3]
			t.Logf("%-36s planted %s, found %s, culprit named %s", row.name, planted, foundN, namedN)
			fmt.Fprintf(&matrix, "\n%s\n    %-18s %8s %8s %14s %9s\n", row.name, "kind", "planted", "found",
				"culprit named", "median")
			for _, k := range regexp.MustCompile(kind).FindAllStringSubmatch(string(out), -1) {
				fmt.Fprintf(&matrix, "    %-18s %8s %8s %14s %9s\n", k[1], k[2], k[3], k[4], k[5])
			}
			assert.Equal(t, planted, foundN)
			if row.want == named {
				assert.NoError(t, err)
				return
			}
			// no name is better than a wrong one: each root is a function of the right package, or
			// said to be unknown
			for _, line := range regexp.MustCompile(`(?m)^ +global  [^ \d].*`).FindAllString(string(out), -1) {
				assert.True(t, strings.Contains(line, "a variable used by") ||
					strings.Contains(line, "name is unknown"), line)
			}
		})
	}
}
