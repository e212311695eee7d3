package leakcheck_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"

	"github.com/enginetest/enginetest/leakcheck"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// engineProcess is an engine in a process of its own, with a shell around it; step makes it serve
// one request.
type engineProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startEngine(t *testing.T, command string, env ...string) *engineProcess {
	t.Helper()
	e := &engineProcess{cmd: exec.Command("sh", "-c", command, os.Args[0])}
	e.cmd.Env = append(os.Environ(), env...)
	var err error
	e.in, err = e.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := e.cmd.StdoutPipe()
	require.NoError(t, err)
	e.out = bufio.NewReader(out)
	require.NoError(t, e.cmd.Start())
	t.Cleanup(func() {
		e.in.Close()
		io.Copy(io.Discard, e.out)
		e.cmd.Wait()
	})
	return e
}

func (e *engineProcess) step(int) {
	fmt.Fprintln(e.in, "request")
	if line, err := e.out.ReadString('\n'); line != "done\n" {
		panic(fmt.Sprintf("the engine said %q, %v", line, err))
	}
}

// TestEngineProcess is no test but the engine that TestGrowthOf starts: what it keeps of each
// request is in its environment.
func TestEngineProcess(t *testing.T) {
	leak := os.Getenv("LEAKCHECK_ENGINE")
	if leak == "" {
		t.Skip("TestGrowthOf starts it")
	}
	var kept []any
	requests := bufio.NewScanner(os.Stdin)
	for requests.Scan() {
		garbage := make([]byte, 1<<20)
		for i := range garbage {
			garbage[i] = 1
		}
		switch leak {
		case "heap":
			kept = append(kept, append([]byte{}, garbage[:200<<10]...))
		case "shared":
			b, err := syscall.Mmap(-1, 0, 200<<10, syscall.PROT_READ|syscall.PROT_WRITE,
				syscall.MAP_SHARED|syscall.MAP_ANON)
			require.NoError(t, err)
			copy(b, garbage)
			kept = append(kept, b)
		case "descriptors":
			f, err := os.Open(os.DevNull)
			require.NoError(t, err)
			kept = append(kept, f)
		}
		debug.FreeOSMemory()
		fmt.Println("done")
	}
	runtime.KeepAlive(kept)
}

const goEngine = `"$0" -test.run='^TestEngineProcess$'; true`

// TestGrowthOf: what a process of the family keeps of each request is found and attributed; one
// that keeps nothing is silent.
func TestGrowthOf(t *testing.T) {
	for _, row := range []struct {
		leak string
		want []string
	}{
		{"nothing", nil},
		{"heap", []string{"anonymous memory of the family: 2", "a round in pid ", "TestEngineProcess"}},
		{"shared", []string{"shared memory of the family: 200.0 KiB more", "/dev/zero"}},
		{"descriptors", []string{"file descriptors of the family: 1.0 more"}},
	} {
		t.Run(row.leak, func(t *testing.T) {
			e := startEngine(t, goEngine, "LEAKCHECK_ENGINE="+row.leak)
			rep, err := leakcheck.MeasureGrowthOf(t.Context(), leakcheck.Tree(e.cmd.Process.Pid), 16, e.step)
			if rep == nil {
				require.ErrorContains(t, err, "race detector")
				t.Skip(err)
			}
			if row.want == nil {
				require.NoError(t, err)
				assert.EqualValues(t, 2, rep.Samples[0].Processes)
				return
			}
			t.Log(err)
			for _, want := range row.want {
				assert.ErrorContains(t, err, want)
			}
		})
	}
}

// TestGrowthOfProgram: a program that is not Go, as most engines' cores.
func TestGrowthOfProgram(t *testing.T) {
	const keeps = `kept=; while read r; do kept="$kept$(head -c 300000 /dev/zero | tr '\0' k)"; echo done; done`
	e := startEngine(t, keeps)
	_, err := leakcheck.MeasureGrowthOf(t.Context(), leakcheck.Tree(e.cmd.Process.Pid), 24, e.step)
	require.ErrorContains(t, err, "anonymous memory of the family:")
	t.Log(err)

	e = startEngine(t, `while read r; do kept="$(head -c 300000 /dev/zero | tr '\0' k)"; echo done; done`)
	leakcheck.GrowthOf(t, leakcheck.Tree(e.cmd.Process.Pid), 12, e.step)
}

func TestGrowthOfNoProcess(t *testing.T) {
	cmd := exec.Command("true")
	require.NoError(t, cmd.Run())
	_, err := leakcheck.MeasureGrowthOf(t.Context(), leakcheck.Tree(cmd.Process.Pid), 8, func(int) {})
	require.ErrorContains(t, err, "no process of the family is left")
}
