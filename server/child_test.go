package server_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/server"
)

// childEnv names what TestChild does in a run of its own.
const childEnv = "SERVER_TEST_CHILD"

// TestChild is what a user writes; TestVerdicts runs it and reads the verdict.
func TestChild(t *testing.T) {
	what := os.Getenv(childEnv)
	flags := map[string][]string{
		"clean": {"-print", "hello"}, "orphan": {
			"-spawn",
			"setsid sleep 300",
		}, "dead": {"-die=7"}, "deaf": {"-deaf"}, "litter": {"-leave", "tmp"},
	}[what]
	if flags == nil {
		t.Skip("it is run by TestVerdicts")
	}
	open := stubServer(flags...).With(server.For(t))
	if what == "deaf" {
		open = open.With(server.Grace(time.Second))
	}
	r := harness.Start(t, open, harness.WithoutDeviceMemory("the stub uses no GPU"))
	r.GenerateGreedy("abc", 4)
}

func TestVerdicts(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	for what, want := range map[string]string{
		"clean":  "",
		"orphan": "outlived the command, ",
		"dead":   "fatal: no such model: m.gguf",
		"deaf":   "and was killed; it was gone ",
		"litter": "temporary file $TMPDIR/cache.bin (100 bytes) is left, removed now",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			child := exec.Command(exe, "-test.run=^TestChild$", "-test.v", "-test.artifacts", "-test.outputdir="+dir)
			child.Env = append(os.Environ(), childEnv+"="+what, "GORACE=atexit_sleep_ms=0")
			out, err := child.CombinedOutput()
			if want == "" {
				require.NoError(t, err, "%s", out)
				require.Contains(t, string(out), "hello\n", "under -v the test prints what the server does")
				logs := 0
				_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, _ error) error {
					if ok, _ := filepath.Match("server-stub-*.log", filepath.Base(path)); ok {
						logs++
					}
					return nil
				})
				require.Equal(t, 1, logs, "the whole log is an artifact")
				return
			}
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			require.Equal(t, 1, exit.ExitCode(), "%s", out)
			require.Contains(t, string(out), want)
			require.Contains(t, string(out), "--- FAIL: TestChild")
		})
	}
}
