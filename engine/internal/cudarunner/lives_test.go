//go:build linux && (amd64 || arm64)

package cudarunner

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
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/cuda/kernels"
	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/internal/checkpoint"
)

// lifeKinds are lives of a worker, each with one thing more than the one before; the last is a
// whole runner's, with a step.
var lifeKinds = []string{"thread", "context", "module", "stream", "pinned", "memory", "graph", "runner"}

// TestGPUHostMemoryOfLives measures what a process grows by per life, by mapping and by what
// glibc's malloc says: each kind in a process of its own. What grows with "context" already is the
// driver's: docs/gpu.md compares it with the same calls from C. ENGINETEST_LIVES is how many lives;
// without it the test is skipped.
func TestGPUHostMemoryOfLives(t *testing.T) {
	if kind := os.Getenv("ENGINETEST_LIVES_KIND"); kind != "" {
		livesOf(t, kind)
		return
	}
	if os.Getenv("ENGINETEST_LIVES") == "" {
		t.Skip("a measurement: ENGINETEST_LIVES is not set")
	}
	gpu(t)
	for _, kind := range lifeKinds {
		t.Run(kind, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestGPUHostMemoryOfLives$", "-test.count=1")
			cmd.Env = append(os.Environ(), "ENGINETEST_LIVES_KIND="+kind)
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
	d, err := cuda.Open()
	require.NoError(t, err)
	v, err := d.Device("0")
	require.NoError(t, err)
	warm := n / 4
	var before memoryNow
	began := time.Now()
	for i := range n {
		if i == warm {
			before = measureMemory(t)
		}
		life(t, v, slices.Index(lifeKinds, kind))
	}
	took := time.Since(began) / time.Duration(n)
	after := measureMemory(t)
	per := func(now, then int64) float64 { return float64(now-then) / 1024 / float64(n-warm) }
	each := func(now, then map[string]int64) (text string) {
		names := map[string]bool{}
		for _, m := range []map[string]int64{now, then} {
			for k := range m {
				names[k] = true
			}
		}
		for _, k := range slices.Sorted(maps.Keys(names)) {
			if grown := per(now[k], then[k]); grown > 0.3 || grown < -0.3 {
				text += fmt.Sprintf(" %s %+.1f", k, grown)
			}
		}
		return text
	}
	fmt.Printf("Go %-8s %3d lives of %s: RSS %+7.1f KiB/life (%+.1f after malloc_trim:%s); malloc in use %+.1f, from the system %+.1f, arenas %d to %d; Go's runtime:%s\n",
		kind, n, took.Round(time.Millisecond), per(after.resident, before.resident), per(after.trimmed,
			before.trimmed), each(after.by, before.by),
		per(after.inUse, before.inUse), per(after.fromSystem,
			before.fromSystem), before.arenas, after.arenas, each(after.inGo, before.inGo))
}

// life is a worker with the first this many things.
func life(t *testing.T, v cuda.Device, kind int) {
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
	if kind == len(lifeKinds)-1 {
		ckpt, err := checkpoint.Open(fixtures.Bundled())
		require.NoError(t, err)
		r, err := New(ckpt, Options{Device: v})
		require.NoError(t, err)
		require.NoError(t, r.AllocateKV(64))
		d := newDriver(t, 16, 64, 2048)
		d.add([]int32{1, 2, 3}, 6, sample.Params{Logprobs: -1})
		d.generate(r, 10)
		require.NoError(t, r.Close())
		return
	}
	w, err := cuda.NewWorker(v, cuda.Config{})
	require.NoError(t, err)
	has := func(what string) bool { return slices.Index(lifeKinds, what) <= kind }
	require.NoError(t, w.Do(func() error {
		var ends []func() error
		if has("module") {
			name, image, err := kernels.Image(v.Major, v.Minor)
			require.NoError(t, err)
			m, err := w.LoadModule("life", name, image)
			require.NoError(t, err)
			ends = append(ends, m.Close)
		}
		if !has("stream") {
			for _, end := range ends {
				require.NoError(t, end())
			}
			return nil
		}
		s, err := w.NewStream("life")
		require.NoError(t, err)
		e, err := w.NewFence("life")
		require.NoError(t, err)
		require.NoError(t, e.Record(s))
		require.NoError(t, s.Synchronize())
		ends = append(ends, s.Close, e.Close)
		var p *cuda.Pinned
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
		return nil
	}))
	require.NoError(t, w.Close(t.Context()))
}

// memoryNow is this process's resident memory in bytes, without what Go could give back.
type memoryNow struct {
	resident, trimmed int64            // trimmed: after glibc's malloc has given back what it could
	by                map[string]int64 // trimmed, by mapping
	inUse, fromSystem int64            // of glibc's malloc, all arenas
	arenas            int
	inGo              map[string]int64 // what Go's runtime says that it has
}

func measureMemory(t *testing.T) (m memoryNow) {
	debug.FreeOSMemory()
	m.inGo = goMemory()
	m.resident, _ = smaps(t)
	m.inUse, m.fromSystem, m.arenas = mallocInfo(t)
	m.trimmed, m.by = smaps(t)
	return m
}

var mappingLine = regexp.MustCompile(`^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+\s*(.*)$`)

// smaps is the resident memory of this process, and that by mapping.
func smaps(t *testing.T) (sum int64, by map[string]int64) {
	f, err := os.Open("/proc/self/smaps")
	require.NoError(t, err)
	defer f.Close()
	by, name := map[string]int64{}, ""
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
			by[name] += n << 10
			sum += n << 10
		}
	}
	return sum, by
}

// mallocInfo asks glibc's malloc for the sums of its arenas, and has it give back what it keeps for
// later.
func mallocInfo(t *testing.T) (inUse, fromSystem int64, arenas int) {
	libc, err := purego.Dlopen("libc.so.6", purego.RTLD_NOW)
	require.NoError(t, err)
	function := func(name string) uintptr {
		f, err := purego.Dlsym(libc, name)
		require.NoError(t, err)
		return f
	}
	path, mode := append([]byte(filepath.Join(t.TempDir(), "malloc")), 0), []byte("w\x00")
	file, _, _ := purego.SyscallN(function("fopen"), uintptr(unsafe.Pointer(&path[0])),
		uintptr(unsafe.Pointer(&mode[0])))
	require.NotZero(t, file)
	purego.SyscallN(function("malloc_info"), 0, file)
	purego.SyscallN(function("fclose"), file)
	purego.SyscallN(function("malloc_trim"), 0)
	data, err := os.ReadFile(string(path[:len(path)-1]))
	require.NoError(t, err)
	text := string(data)
	arenas = strings.Count(text, "<heap nr")
	text = text[strings.LastIndex(text, "</heap>"):]
	size := func(tag string) int64 {
		m := regexp.MustCompile(`<` + tag + `"[^>]*size="(\d+)"`).FindStringSubmatch(text)
		require.NotNil(t, m, tag)
		n, err := strconv.ParseInt(m[1], 10, 64)
		require.NoError(t, err)
		return n
	}
	fromSystem = size(`system type="current`)
	return fromSystem - size(`total type="fast`) - size(`total type="rest`), fromSystem, arenas
}

// goMemory is what Go's runtime says that it has from the system and keeps.
func goMemory() map[string]int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return map[string]int64{
		"heap": int64(m.HeapSys - m.HeapReleased), "stacks": int64(m.StackSys), "spans": int64(m.MSpanSys),
		"caches":  int64(m.MCacheSys),
		"profile": int64(m.BuckHashSys), "GC": int64(m.GCSys), "other": int64(m.OtherSys),
	}
}
