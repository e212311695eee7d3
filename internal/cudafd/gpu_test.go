//go:build linux && (amd64 || arm64)

package cudafd_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/internal/cudafd"
	"github.com/enginetest/enginetest/internal/dynlib"
)

// descriptors lists what is open, by number.
func descriptors() map[string]string {
	out := map[string]string{}
	fds, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil {
			out[filepath.Base(fd)] = target
		}
	}
	return out
}

// inChild runs one test of this binary in a process of its own: a driver starts once.
func inChild(t *testing.T, test string) {
	t.Helper()
	if _, err := os.Stat("/dev/nvidiactl"); err != nil {
		t.Skip("no GPU: ", err)
	}
	c := exec.Command(os.Args[0], "-test.run", "^"+test+"$", "-test.v", "-test.count=1")
	c.Env = append(os.Environ(), "CUDAFD_CHILD=1")
	out, err := c.CombinedOutput()
	t.Logf("%s", out)
	require.NoError(t, err)
}

func onlyInChild(t *testing.T) {
	t.Helper()
	if os.Getenv("CUDAFD_CHILD") == "" {
		t.Skip("run by another test, in a process of its own")
	}
}

// On a real GPU, all that comes with a worker of package cuda is proved to be the driver's, and
// what others open meanwhile is not.
func TestRealDriverStartedHere(t *testing.T) { inChild(t, "TestChildStartedHere") }

func TestChildStartedHere(t *testing.T) {
	onlyInChild(t)
	before := descriptors()
	d, err := cuda.Open()
	require.NoError(t, err)
	report(t, "after cuInit", before)
	v, err := d.Device("0")
	require.NoError(t, err)
	mine := opened(t) // between the driver's start and the context's
	w, err := cuda.NewWorker(v, cuda.Config{})
	require.NoError(t, err)
	require.NoError(t, w.Do(func() error {
		m, err := w.Alloc("x", 1<<20)
		if err != nil {
			return err
		}
		return m.Free()
	}))
	for _, fd := range mine {
		before[fmt.Sprint(fd)] = "mine"
	}
	assert.Empty(t, report(t, "with a context", before))
	require.NoError(t, w.Close(context.Background()))
	assert.Empty(t, report(t, "after the context", before))
	for _, fd := range mine {
		assert.Empty(t, cudafd.Own()[fmt.Sprint(fd)], fd)
	}
}

// A driver that other code starts is known by what its threads wait for.
func TestRealDriverStartedByOthers(t *testing.T) { inChild(t, "TestChildStartedByOthers") }

func TestChildStartedByOthers(t *testing.T) {
	onlyInChild(t)
	before := descriptors()
	lib, err := dynlib.Open("libcuda.so.1")
	require.NoError(t, err)
	require.Zero(t, int32(dynlib.Call(dynlib.Symbol(lib, "cuInit"), []uintptr{0}))) //nolint:gosec // a CUresult
	ctx := new(uintptr)
	require.Zero(t, int32(dynlib.Call(dynlib.Symbol(lib, "cuDevicePrimaryCtxRetain"), //nolint:gosec // a CUresult
		[]uintptr{uintptr(unsafe.Pointer(ctx)), 0})))
	mine := opened(t)
	for _, fd := range mine {
		before[fmt.Sprint(fd)] = "mine"
	}
	time.Sleep(200 * time.Millisecond) // its threads settle
	assert.Empty(t, report(t, "started by others", before))
	for _, fd := range mine {
		assert.Empty(t, cudafd.Own()[fmt.Sprint(fd)], fd)
	}
}

// report logs what came since, with the evidence and the threads, and returns the pipes, eventfds
// and epolls without evidence.
func report(t *testing.T, when string, before map[string]string) (unproved []string) {
	t.Helper()
	own, now := cudafd.Own(), descriptors()
	var lines []string
	for fd, target := range now {
		if before[fd] == target || before[fd] == "mine" {
			continue
		}
		lines = append(lines, fmt.Sprintf("fd %3s %s: %s", fd, target, own[fd]))
		if own[fd] == "" && (strings.HasPrefix(target, "pipe:") || strings.HasPrefix(target, "anon_inode:")) {
			unproved = append(unproved, fd+" "+target)
		}
	}
	slices.Sort(lines)
	tasks, _ := filepath.Glob("/proc/self/task/*")
	for _, task := range tasks {
		comm, _ := os.ReadFile(filepath.Join(task, "comm"))
		call, _ := os.ReadFile(filepath.Join(task, "syscall"))
		lines = append(lines, fmt.Sprintf("%s %s in %s", task, strings.TrimSpace(string(comm)), strings.TrimSpace(string(call))))
	}
	maps, _ := os.ReadFile("/proc/self/maps")
	seen := map[string]int{}
	for line := range strings.Lines(string(maps)) {
		if f := strings.Fields(line); len(f) > 5 && !strings.Contains(f[5], ".so") && !strings.HasPrefix(f[5], "[") {
			seen[strings.Join(f[5:], " ")]++
		}
	}
	t.Logf("%s:\n%s\nmapped: %v", when, strings.Join(lines, "\n"), seen)
	return unproved
}
