package server_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/internal/procfs"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/server"
)

// shapes are the ways in which a launcher starts its server, "$@". Each waits with it, or instead
// of it.
var shapes = []struct{ name, script string }{
	{"background", `"$@" & wait`},
	{"orphan", `("$@" &); sleep 300`},
	{"setsid", `setsid "$@" & wait`},
	{"daemon", `(setsid "$@" &); sleep 300`},
	{"cleared environment", `env -i SERVER_TEST_STUB=1 "$@" & wait`},
	{"daemon without environment and files", `(env -i SERVER_TEST_STUB=1 setsid "$@" </dev/null >/dev/null 2>&1 3>&- &); sleep 300`},
	{"own group", `bash -c 'set -m; "$@" & wait' bash "$@"; sleep 300`},
	{"nohup", `nohup "$@" >/dev/null 2>&1 & sleep 300`},
	{"wrapper of a wrapper", `sh -c 'sh -c "\"\$@\"; true" sh "$@"; true' sh "$@"; true`},
	{"respawn", `trap "" HUP; while :; do "$@"; done`},
	// As llama-swap's wrappers: the signal ends the wrapper, and the server is not told.
	{"wrapper that keeps the signal", `trap 'exit 0' TERM; "$@" & wait`},
	// As MPI's: a daemon in a session of its own, deaf, with each rank in a group of its own.
	{
		"MPI workers", `setsid bash -c 'trap "" TERM; set -m; sleep 301 & sleep 302 & "$@" & wait' bash "$@" & wait`,
	},
}

func init() { campaign = campaignHost }

// campaignHost is a test process with one server. It stops it when its command ends, or when its
// standard input does, and prints what is wrong.
func campaignHost(args []string) {
	_ = os.Unsetenv(campaignEnv)
	exe, _ := os.Executable()
	o := server.Command("sh", append([]string{"-c", args[0], "sh", exe, "-port", server.Port, "-leave", "shm"}, args[1:]...)...).
		With(server.Env(stubEnv+"=1"), server.Grace(200*time.Millisecond))
	fmt.Println("starting")
	s, err := o.Start(context.Background())
	if err != nil {
		fmt.Println(err)
		os.Exit(0)
	}
	fmt.Println("ready at", s.URL())
	over := make(chan struct{})
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		close(over)
	}()
	select {
	case <-s.Done():
	case <-over:
	}
	fmt.Println(s.Stop(context.Background()).Err())
	os.Exit(0)
}

// A round is one test process, its server, and what came of them.
type round struct {
	token string
	host  *exec.Cmd
	out   string
	stdin *os.File
}

func startRound(t *testing.T, script string) *round {
	t.Helper()
	r := &round{token: fmt.Sprintf("token-%d", rand.Int64()), out: filepath.Join(t.TempDir(), "out")}
	out, err := os.Create(r.out)
	require.NoError(t, err)
	defer out.Close()
	in, ours, err := os.Pipe()
	require.NoError(t, err)
	defer in.Close()
	exe, err := os.Executable()
	require.NoError(t, err)
	r.stdin, r.host = ours, exec.Command(exe, script, "-print", r.token)
	r.host.Env = append(os.Environ(), campaignEnv+"=1", "GORACE=atexit_sleep_ms=0")
	r.host.Stdin, r.host.Stdout, r.host.Stderr = in, out, out
	require.NoError(t, r.host.Start())
	return r
}

func (r *round) printed() string {
	b, _ := os.ReadFile(r.out)
	return string(b)
}

// living lists the processes that have the token in their arguments, or its family in their
// environment, without the host.
func (r *round) living() map[int]string {
	found := map[int]string{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == r.host.Process.Pid || !bytes.Contains(procfs.Read(pid, "cmdline"), []byte(r.token)) {
			continue
		}
		if st, ok := procfs.StatOf(pid); ok && !st.Dead() {
			found[pid] = string(bytes.ReplaceAll(procfs.Read(pid, "cmdline"), []byte{0}, []byte{' '}))
		}
	}
	return found
}

// server is the process that serves: the one whose program is the stub.
func (r *round) server() (pid int) {
	exe, _ := os.Executable()
	for p, line := range r.living() {
		if strings.HasPrefix(line, exe+" -port") {
			pid = p
		}
	}
	return pid
}

// launcher is the command, whose parent is the supervisor.
func (r *round) launcher(script string) (pid int) {
	for p, line := range r.living() {
		st, _ := procfs.StatOf(p)
		parent, _ := procfs.StatOf(st.Parent)
		if strings.HasPrefix(line, "sh -c "+script) && parent.Parent == r.host.Process.Pid {
			pid = p
		}
	}
	return pid
}

// The server, its launcher and the test process are killed at random moments, alone and together.
// Nothing survives; a test process that lives names what outlived the launcher, and the shared
// memory.
func TestCampaign(t *testing.T) {
	if os.Getenv("ENGINETEST_LONG") == "" {
		t.Skip("ENGINETEST_LONG is not set")
	}
	const rounds = 100
	for _, shape := range shapes {
		t.Run(shape.name, func(t *testing.T) {
			t.Parallel()
			count := map[string]int{}
			for range rounds {
				campaignRound(t, shape.script, count)
			}
			t.Logf("%d rounds: %v", rounds, count)
		})
	}
}

func campaignRound(t *testing.T, script string, count map[string]int) {
	t.Helper()
	r := startRound(t, script)
	defer r.stdin.Close()
	defer r.clean()
	ready := rand.IntN(3) > 0
	if ready { // else at any moment of its start
		require.Eventually(t, func() bool { return strings.Contains(r.printed(), "ready at ") }, long, time.Millisecond, r.printed)
	}
	time.Sleep(time.Duration(rand.Int64N(int64(20 * time.Millisecond))))
	victims := []string{"server", "launcher", "test process"}
	rand.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
	victims = victims[:1+rand.IntN(len(victims))]
	hostKilled, serverPID, orphan := false, 0, false
	for _, v := range victims {
		switch v {
		case "test process":
			hostKilled = true
			_ = r.host.Process.Kill()
		case "launcher":
			if pid := r.launcher(script); pid != 0 {
				serverPID = r.server()
				orphan = syscall.Kill(pid, syscall.SIGKILL) == nil && serverPID != 0 && ready
			}
		case "server":
			if pid := r.server(); pid != 0 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		count[v]++
	}
	_ = r.stdin.Close() // the host stops what is left
	_ = r.host.Wait()
	require.Eventually(t, func() bool { return len(r.living()) == 0 }, long, 5*time.Millisecond,
		"%v survived; killed: %v; the host printed: %s", r.living(), victims, r.printed())
	if hostKilled {
		return
	}
	if orphan && !slices.Contains(victims, "server") { // which may be dead before it is named
		count["orphans named"]++
		require.Contains(t, r.printed(), fmt.Sprintf("process %d (", serverPID), "killed: %v", victims)
	}
	if ready {
		count["segments named"]++
		require.Contains(t, r.printed(), "shared memory /dev/shm/et-stub-", "killed: %v", victims)
	}
}

// clean removes what no one can remove any more when the test process is killed.
func (r *round) clean() {
	_ = r.host.Process.Kill()
	left, _ := filepath.Glob("/dev/shm/et-stub-*-" + r.token)
	for _, path := range left {
		_ = os.Remove(path)
	}
}

// Servers that end in order raise no alarm, whatever way they are started in. 1,000 with
// ENGINETEST_LONG.
func TestCleanLives(t *testing.T) {
	rounds := 9
	if os.Getenv("ENGINETEST_LONG") != "" {
		rounds = 1000
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	wrapped := func(script string) server.Opener {
		return server.Command("sh", "-c", script, "sh", exe, "-port", server.Port).With(server.Env(stubEnv+"=1",
			"GORACE=atexit_sleep_ms=0"))
	}
	lives := []server.Opener{
		stubServer(),
		wrapped(`exec "$@"`),
		wrapped(`"$@" & pid=$!; trap 'kill $pid; wait $pid; exit 0' TERM; wait`),
	}
	for i := range rounds {
		s, err := lives[i%len(lives)].Start(within(t))
		require.NoError(t, err)
		_, err = s.Generate(within(t), llm.Request{Prompt: "a"})
		require.NoError(t, err)
		require.NoError(t, s.Stop(within(t)).Err(), "life %d", i)
	}
}

// The control: without a family the server survives the test process, and a round sees it.
func TestCampaignSeesSurvivors(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	r := &round{token: fmt.Sprintf("token-%d", rand.Int64())}
	r.host = exec.Command("sh", "-c", `setsid "$@" & wait`, "sh", exe, "-port", "0", "-print", r.token)
	r.host.Env = append(os.Environ(), stubEnv+"=1")
	require.NoError(t, r.host.Start())
	require.Eventually(t, func() bool { return r.server() != 0 }, long, time.Millisecond)
	pid := r.server()
	require.NoError(t, r.host.Process.Kill())
	_ = r.host.Wait()
	require.Contains(t, r.living(), pid)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	require.Eventually(t, func() bool { return len(r.living()) == 0 }, long, time.Millisecond)
}
