package harness_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/internal/faketb"
)

// rerun runs one test of this binary in a process of its own, as go test -json would, and returns
// what it prints and its error.
func rerun(t *testing.T, test string, args ...string) (string, error) {
	t.Helper()
	c := exec.Command(os.Args[0], append([]string{"-test.run", test, "-test.v=test2json", "-test.count=1"}, args...)...)
	c.Env = append(os.Environ(), "HARNESS_CHILD=1")
	out, err := c.CombinedOutput()
	return string(out), err
}

func onlyInChild(t *testing.T) {
	t.Helper()
	if os.Getenv("HARNESS_CHILD") == "" {
		t.Skip("run by another test, in a process of its own")
	}
}

// What a parallel test opens and keeps until its end is not blamed on a fixture that ends before.
func TestParallelTestsAreNotBlamed(t *testing.T) {
	out, err := rerun(t, "^TestChildParallel$")
	require.NoError(t, err, out)
	assert.Contains(t, out, "not blamed, because other tests or fixtures ran in this process: child process")
}

func TestChildParallel(t *testing.T) {
	onlyInChild(t)
	opened, closed := make(chan bool), make(chan bool)
	t.Run("fixture", func(t *testing.T) {
		t.Parallel()
		defer close(closed)
		r := harness.Start(t, openToy, noGPU...)
		opened <- true
		<-opened
		t.Log(r.Stop())
	})
	t.Run("other", func(t *testing.T) {
		t.Parallel()
		<-opened
		f, err := os.Open("/etc/hosts")
		require.NoError(t, err)
		defer f.Close()
		s := httptest.NewServer(http.NotFoundHandler())
		defer s.Close()
		c := exec.Command("sleep", "60")
		require.NoError(t, c.Start())
		defer func() { c.Process.Kill(); c.Wait() }()
		opened <- true
		<-closed
	})
}

// The same things are found when no other test runs, unless the host is left out.
func TestWithoutHost(t *testing.T) {
	var f *os.File
	plant := func(ft *faketb.T, opts ...harness.Option) {
		r := harness.Start(ft, openToy, append(opts, noGPU...)...)
		var err error
		f, err = os.Open("/etc/hosts")
		require.NoError(t, err)
		t.Cleanup(func() { f.Close() })
		r.GenerateGreedy("x", 1)
	}
	failures := faketb.Run(func(ft *faketb.T) { plant(ft, harness.TeardownTimeout(2*time.Second)) })
	require.Len(t, failures, 1)
	assert.Contains(t, failures[0], "/etc/hosts")
	var report harness.Report
	failures = faketb.Run(func(ft *faketb.T) {
		r := harness.Start(ft, openToy, append(noGPU, harness.WithoutHost("the suite keeps a log open"))...)
		plant(ft, harness.WithoutHost("the suite keeps a log open"))
		report = r.Stop()
	})
	assert.Empty(t, failures)
	assert.Contains(t, report.String(), "not checked: the suite keeps a log open")
}

// A closed file is found in a folder that is watched.
func TestWatchDirs(t *testing.T) {
	dir := t.TempDir()
	failures := faketb.Run(func(ft *faketb.T) {
		harness.Start(ft, openToy, append(noGPU, harness.WatchDirs(dir), harness.TeardownTimeout(2*time.Second))...)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "engine.sock"), nil, 0o600))
	})
	require.Len(t, failures, 1)
	assert.Contains(t, failures[0], "engine.sock")
	assert.Empty(t, faketb.Run(func(ft *faketb.T) {
		harness.Start(ft, openToy, append(noGPU, harness.WatchDirs(dir))...)
	}), "it was there before")
}

// A child that the engine did not name is not killed: the finding says that it is left running.
func TestAChildThatIsLeftRunning(t *testing.T) {
	var child *exec.Cmd
	failures := faketb.Run(func(ft *faketb.T) {
		harness.Start(ft, openToy, append(noGPU, harness.TeardownTimeout(2*time.Second))...)
		child = exec.Command("sleep", "60")
		require.NoError(t, child.Start())
	})
	defer func() { child.Process.Kill(); child.Wait() }()
	require.Len(t, failures, 1)
	assert.Contains(t, failures[0], fmt.Sprintf("child process %d runs, and is left running: sleep 60",
		child.Process.Pid))
	assert.NoError(t, child.Process.Signal(syscall.Signal(0)), "it is")
}
