package gpuwait_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/forkproc"
)

// fakeT records what a wrapper says.
type fakeT struct {
	name        string
	deadline    time.Time
	fatal, skip string
	cleanups    []func()
}

func (f *fakeT) Helper()           {}
func (f *fakeT) Name() string      { return f.name }
func (f *fakeT) Cleanup(fn func()) { f.cleanups = append(f.cleanups, fn) }
func (f *fakeT) Deadline() (time.Time, bool) {
	return f.deadline, !f.deadline.IsZero()
}

func (f *fakeT) Fatalf(format string, args ...any) {
	f.fatal = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (f *fakeT) Skipf(format string, args ...any) {
	f.skip = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// run lets Fatalf end the body only.
func (f *fakeT) run(body func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		body()
	}()
	<-done
}

// withoutGPU runs body in a child that finds no NVML, also on a machine that has it: the first file
// of that name is no library.
func withoutGPU(t *testing.T, body func(t *testing.T)) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "libnvidia-ml.so.1"), nil, 0o600))
	forkproc.Run(t, body, forkproc.Env("LD_LIBRARY_PATH="+dir+":"+os.Getenv("LD_LIBRARY_PATH")))
}
