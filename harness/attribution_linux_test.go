package harness_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/harness"
)

// planted is what one parallel test leaves behind.
type planted struct {
	kind string
	plan plan
}

// plan is how a kind of leak must be judged while other tests run: found, or noted when nothing
// tells whose it is. plant returns what names it.
type plan struct {
	verdict string
	plant   func(t *testing.T, e *toy, id int) (token string)
}

// leaked keeps what is planted until the process ends.
var leaked struct {
	sync.Mutex
	undo []func()
}

func undoLater(f func()) {
	leaked.Lock()
	defer leaked.Unlock()
	leaked.undo = append(leaked.undo, f)
}

func sleeper(id int) *exec.Cmd { return exec.Command("sleep", fmt.Sprintf("600.%03d", id)) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func listen(network, addr string) net.Listener {
	l := must(net.Listen(network, addr))
	undoLater(func() { l.Close() })
	return l
}

var plans = map[string]plan{
	"clean": {"clean", func(*testing.T, *toy, int) string { return "" }},
	"a child": {"found", func(_ *testing.T, _ *toy, id int) string {
		c := sleeper(id)
		must(0, c.Start())
		undoLater(func() { c.Process.Kill(); c.Wait() })
		return c.Args[1]
	}},
	"a grandchild that outlives its parent's group": {"found", func(_ *testing.T, e *toy, id int) string {
		c := exec.Command("sh", "-c", fmt.Sprintf("setsid sleep 600.%03d & echo $!; wait", id))
		out := must(c.StdoutPipe())
		must(0, c.Start())
		var pid int
		must(fmt.Fscan(out, &pid))
		undoLater(func() { must(os.FindProcess(pid)).Kill(); c.Process.Kill(); c.Wait() })
		e.children = nil // it does not name them
		return fmt.Sprintf("600.%03d", id)
	}},
	"a file in the test's folder": {"found", func(t *testing.T, _ *toy, id int) string {
		path := filepath.Join(t.TempDir(), fmt.Sprintf("log-%03d", id))
		f := must(os.Create(path))
		undoLater(func() { f.Close() })
		return path
	}},
	"a unix socket in the test's folder": {"found", func(_ *testing.T, e *toy, _ int) string {
		path := filepath.Join(e.dir, "s")
		listen("unix", path)
		return path
	}},
	"a listener with its goroutine": {"found", func(*testing.T, *toy, int) string {
		go acceptForever(listen("tcp", "127.0.0.1:0"))
		return acceptor
	}},
	"shared memory of its process": {"found", func(_ *testing.T, e *toy, id int) string {
		path := fmt.Sprintf("/dev/shm/planted-%d-%03d", os.Getppid(), id)
		program(e, "sh", "-c", "exec 3<>"+path+"; echo; exec sleep 600")
		undoLater(func() { os.Remove(path) })
		return path
	}},
	"a listener in a global": {"noted", func(*testing.T, *toy, int) string {
		return listen("tcp", "127.0.0.1:0").Addr().String()
	}},
	"a file in a global": {"noted", func(t *testing.T, _ *toy, id int) string {
		path := filepath.Join(os.Getenv("PLANTED_DIR"), fmt.Sprintf("global-%03d", id))
		f := must(os.Create(path))
		undoLater(func() { f.Close() })
		return path
	}},
	"a closed temporary file": {"noted", func(_ *testing.T, _ *toy, id int) string {
		path := filepath.Join(os.TempDir(), fmt.Sprintf("closed-%03d", id))
		must(0, os.WriteFile(path, nil, 0o600))
		undoLater(func() { os.Remove(path) })
		return path
	}},
}

func acceptForever(l net.Listener) {
	for {
		if _, err := l.Accept(); err != nil {
			return
		}
	}
}

// schedule draws what each of the tests leaves behind: every kind once, then at random.
func schedule(seed uint64, n int) (out []planted) {
	kinds := []string{
		"clean", "a child", "a grandchild that outlives its parent's group", "a file in the test's folder",
		"a unix socket in the test's folder", "a listener with its goroutine", "shared memory of its process",
		"a listener in a global", "a file in a global", "a closed temporary file",
	}
	random := rand.New(rand.NewPCG(seed, 0))
	for i := range n {
		k := kinds[i%len(kinds)]
		if i >= len(kinds) {
			k = kinds[random.IntN(len(kinds))]
		}
		out = append(out, planted{k, plans[k]})
	}
	return out
}

// TestChildAttribution runs the tests of a schedule, all at the same time: no one ends before every
// one has been judged.
func TestChildAttribution(t *testing.T) {
	onlyInChild(t)
	seed, n := must(strconv.ParseUint(os.Getenv("PLANTED_SEED"), 10, 64)), must(strconv.Atoi(os.Getenv("PLANTED_TESTS")))
	t.Cleanup(func() {
		for _, undo := range leaked.undo {
			undo()
		}
	})
	var ready, judged sync.WaitGroup
	list := schedule(seed, n)
	ready.Add(n)
	judged.Add(n)
	for id, p := range list {
		t.Run(fmt.Sprintf("%03d", id), func(t *testing.T) {
			t.Parallel()
			opts := noGPU
			if p.plan.verdict == "found" {
				opts = hurried
			}
			j := judgement{ID: id}
			dir := t.TempDir()
			t.Cleanup(func() { // the last
				j.Failed = t.Failed()
				assert.NoError(t, os.WriteFile(fmt.Sprintf("%s/%03d.judgement", os.Getenv("PLANTED_DIR"), id),
					must(json.Marshal(j)), 0o600))
			})
			r := harness.Start(t, func(ctx context.Context) (*toy, error) {
				e := must(openToy(ctx))
				e.dir = dir
				j.Token = p.plan.plant(t, e, id)
				return e, nil
			}, opts...)
			ready.Done()
			ready.Wait()
			report := r.Stop()
			if err := report.Err(); err != nil {
				j.Errors = err.Error()
			}
			for _, s := range report.Steps {
				j.Notes += strings.Join(s.Notes, "\n")
			}
			judged.Done()
			judged.Wait()
		})
	}
}

// judgement is what became of one test.
type judgement struct {
	ID     int
	Token  string
	Failed bool
	Errors string
	Notes  string
}

// judgements reads what TestChildAttribution wrote.
func judgements(t *testing.T, dir string) (list []judgement) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.judgement"))
	require.NoError(t, err)
	for _, file := range files {
		var j judgement
		require.NoError(t, json.Unmarshal(must(os.ReadFile(file)), &j))
		list = append(list, j)
	}
	return list
}

// TestAttributionInParallel plants leaks in tests that all run at the same time: what evidence
// attributes is found and named, what nothing tells is noted, and no test is blamed for another's.
func TestAttributionInParallel(t *testing.T) {
	if testing.Short() {
		t.Skip("processes that each wait for a leak")
	}
	seeds, n := 1, 10
	if os.Getenv("ENGINETEST_LONG") != "" {
		seeds, n = 10, 30
	}
	matrix := map[string]map[string]int{}
	wrong := 0
	for seed := range seeds {
		dir, left := t.TempDir(), t.TempDir()
		out, _ := rerunIn(t, "^TestChildAttribution$", []string{
			"PLANTED_SEED=" + strconv.Itoa(seed), "PLANTED_TESTS=" + strconv.Itoa(n), "TMPDIR=" + dir,
			"PLANTED_DIR=" + left,
		}, "-test.parallel="+strconv.Itoa(n), "-test.timeout=10m")
		list := judgements(t, left)
		require.Len(t, list, n, out)
		plan := schedule(uint64(seed), n)
		for _, j := range list {
			p := plan[j.ID]
			require.True(t, j.Token != "" || p.kind == "clean", "%03d: %s", j.ID, out)
			verdict := j.verdict(p.kind)
			if matrix[p.kind] == nil {
				matrix[p.kind] = map[string]int{}
			}
			matrix[p.kind][verdict]++
			assert.Equal(t, p.plan.verdict, verdict, "%03d, %s: %+v", j.ID, p.kind, j)
			for _, o := range list {
				if o.ID != j.ID && o.Token != "" && o.Token != acceptor && strings.Contains(j.Errors, o.Token) {
					wrong++
					t.Errorf("%03d is blamed for what %03d left: %s", j.ID, o.ID, j.Errors)
				}
			}
		}
	}
	for _, p := range schedule(0, 10) {
		t.Logf("%-48s %v", p.kind, matrix[p.kind])
	}
	t.Logf("%d tests, %d blamed for another's", seeds*n, wrong)
}

const acceptor = "harness_test.acceptForever"

// verdict is what the fixture said of its test. Long lists of notes are cut.
func (j judgement) verdict(kind string) string {
	switch {
	case j.Failed && strings.Contains(j.Errors, j.Token):
		return "found"
	case j.Failed:
		return "failed for something else"
	case kind == "clean":
		return "clean"
	case strings.Contains(j.Notes, j.Token), strings.HasSuffix(j.Notes, " more"):
		return "noted"
	}
	return "missed"
}

// rerunIn is rerun with variables.
func rerunIn(t *testing.T, test string, env []string, args ...string) (string, error) {
	t.Helper()
	c := exec.Command(os.Args[0], append([]string{"-test.run", test, "-test.v=test2json", "-test.count=1"}, args...)...)
	c.Env = append(append(os.Environ(), "HARNESS_CHILD=1"), env...)
	c.WaitDelay = time.Minute
	out, err := c.CombinedOutput()
	return string(out), err
}
