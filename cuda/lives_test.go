package cuda

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/cuda/kernels"
)

// lifeKinds are lives of a worker, each with one thing more than the one before.
var lifeKinds = []string{"thread", "context", "module", "stream", "pinned", "memory", "graph"}

// TestGPUHostMemoryOfLives measures what a process grows by per life of a worker, by mapping: each kind in a process of its own. What grows with "context"
// already is the driver's: docs/gpu.md compares it with the same calls from C. ENGINETEST_LIVES is how many lives; without it the test is skipped.
func TestGPUHostMemoryOfLives(t *testing.T) {
	if kind := os.Getenv("CUDA_TEST_LIVES"); kind != "" {
		livesOf(t, kind)
		return
	}
	if os.Getenv("ENGINETEST_LIVES") == "" {
		t.Skip("a measurement: ENGINETEST_LIVES is not set")
	}
	if os.Getenv("ENGINETEST_LIBCUDA") == "" {
		gpuRig(t)
	}
	for _, kind := range lifeKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel() // memory does not depend on time
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestGPUHostMemoryOfLives$", "-test.v", "-test.count=1")
			cmd.Env = append(os.Environ(), "CUDA_TEST_LIVES="+kind)
			out, err := cmd.CombinedOutput()
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, "KiB/life") {
					t.Log(strings.TrimSpace(line))
				}
			}
			require.NoError(t, err, "%s", out)
		})
	}
}

func livesOf(t *testing.T, kind string) {
	n, err := strconv.Atoi(os.Getenv("ENGINETEST_LIVES"))
	require.NoError(t, err)
	d, err := Open()
	require.NoError(t, err)
	v, err := d.Device("0")
	require.NoError(t, err)
	const warm = 12
	began := time.Now()
	var before, beforeGo map[string]int64
	for i := range n {
		if i == warm {
			before, beforeGo = smaps(t), goMemory()
		}
		life(t, v, slices.Index(lifeKinds, kind))
		if i > warm+3 && time.Since(began) > 25*time.Second { // side by side they wait for each other in the driver
			n = i + 1
			break
		}
	}
	after, afterGo := smaps(t), goMemory()
	per := func(a, b map[string]int64) (total float64, text string) {
		names := map[string]bool{}
		for k := range a {
			names[k] = true
		}
		for k := range b {
			names[k] = true
		}
		for _, k := range slices.Sorted(maps.Keys(names)) {
			grown := float64(b[k]-a[k]) / 1024 / float64(n-warm)
			total += grown
			if grown > 0.3 || grown < -0.3 {
				text += fmt.Sprintf(" %s %+.1f", k, grown)
			}
		}
		return total, text
	}
	total, text := per(before, after)
	_, inGo := per(beforeGo, afterGo)
	fmt.Printf("Go %-8s %3d lives: RSS %+7.1f KiB/life;%s; Go's runtime:%s\n", kind, n, total, text, inGo)
}

// life is a worker with the first so many things.
func life(t *testing.T, v Device, kind int) {
	if kind == 0 {
		done := make(chan struct{})
		go func() {
			runtime.LockOSThread() // and never unlocks: the thread ends
			close(done)
		}()
		<-done
		time.Sleep(time.Millisecond)
		return
	}
	w, err := NewWorker(v, Config{})
	require.NoError(t, err)
	has := func(what string) bool { return slices.Index(lifeKinds, what) <= kind }
	do(t, w, func() {
		var ends []func() error
		if has("module") {
			name, image, err := kernels.Image(v.Major, v.Minor)
			require.NoError(t, err)
			if os.Getenv("ENGINETEST_LIBCUDA") != "" {
				name, image = "test.ptx", []byte(testPTX)
			}
			m, err := w.LoadModule("life", name, image)
			require.NoError(t, err)
			ends = append(ends, m.Close)
		}
		if !has("stream") {
			for _, end := range ends {
				require.NoError(t, end())
			}
			return
		}
		s, err := w.NewStream("life")
		require.NoError(t, err)
		e, err := w.NewFence("life")
		require.NoError(t, err)
		require.NoError(t, e.Record(s))
		require.NoError(t, s.Synchronize())
		ends = append(ends, s.Close, e.Close)
		var p *Pinned
		if has("pinned") {
			p, err = w.AllocPinned("life", 1<<20)
			require.NoError(t, err)
			ends = append(ends, p.Free)
		}
		if has("memory") {
			m, err := w.Alloc("life", 64<<20)
			require.NoError(t, err)
			require.NoError(t, m.CopyFromAsync(0, p, 0, 1<<20, s))
			require.NoError(t, s.Synchronize())
			ends = append(ends, m.Free)
			if has("graph") {
				g, err := s.Capture("life", func() error {
					for range 50 {
						if err := m.Fill(0, 1024, 0, s); err != nil {
							return err
						}
					}
					return nil
				})
				require.NoError(t, err)
				x, err := g.Instantiate("life")
				require.NoError(t, err)
				require.NoError(t, x.Launch(s))
				require.NoError(t, s.Synchronize())
				ends = append(ends, g.Close, x.Close)
			}
		}
		for _, end := range slices.Backward(ends) {
			require.NoError(t, end())
		}
	})
	require.NoError(t, closeSoon(w))
}

var mappingLine = regexp.MustCompile(`^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+\s*(.*)$`)

// smaps is the resident memory of this process by mapping, without what Go could give back.
func smaps(t *testing.T) map[string]int64 {
	debug.FreeOSMemory()
	f, err := os.Open("/proc/self/smaps")
	require.NoError(t, err)
	defer f.Close()
	resident, name := map[string]int64{}, ""
	for s := bufio.NewScanner(f); s.Scan(); {
		if m := mappingLine.FindStringSubmatch(s.Text()); m != nil {
			switch name = m[1]; {
			case name == "":
				name = "anonymous"
			case strings.HasPrefix(name, "/dev/"):
				name = strings.TrimRight(name, "0123456789")
			case strings.HasPrefix(name, "/"):
				name = filepath.Base(name)
			}
		} else if kib, ok := strings.CutPrefix(s.Text(), "Rss:"); ok {
			n, err := strconv.ParseInt(strings.Fields(kib)[0], 10, 64)
			require.NoError(t, err)
			resident[name] += n << 10
		}
	}
	return resident
}

// goMemory is what Go's runtime says that it has from the system and keeps.
func goMemory() map[string]int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return map[string]int64{
		"heap": int64(m.HeapSys - m.HeapReleased), "stacks": int64(m.StackSys), "spans": int64(m.MSpanSys), "caches": int64(m.MCacheSys),
		"profile": int64(m.BuckHashSys), "GC": int64(m.GCSys), "other": int64(m.OtherSys),
	}
}
