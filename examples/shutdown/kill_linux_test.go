package shutdown_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// 6. SIGKILL of the core, of its parent, of both, at random moments: from the first instruction of
// the parent to the middle of its requests.

// TestKillCore: the caller has an error, and Shutdown still proves that all is
// gone.
func TestKillCore(t *testing.T) {
	inChildCores(t, "SIGKILL of the core, at random", func(t *testing.T, cfg engine.Config) {
		for range rounds(5, 200) {
			r, e := start(t, cfg)
			pid := e.PIDs()[0]
			answered := make(chan answer, 1)
			go func() {
				var a answer
				for a.err == nil {
					a.outs, a.err = r.TryGenerate(some(400))
				}
				answered <- a
			}()
			time.Sleep(rand.N(20 * time.Millisecond))
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
			a := <-answered
			assert.ErrorIs(t, a.err, llm.ErrEngineDead)
			assert.ErrorContains(t, a.err, fmt.Sprintf("core process %d was killed by SIGKILL", pid))
			gone(t, r)
		}
	})
}

func TestKillParent(t *testing.T) {
	inChildCores(t, "SIGKILL of the parent, at random", func(t *testing.T, cfg engine.Config) {
		for i := range rounds(5, 200) {
			killed(t, cfg.TensorParallel, i == 0, func(parent int, _ []int) {
				_ = syscall.Kill(parent, syscall.SIGKILL)
			})
		}
	})
	inChildCores(t, "SIGKILL of both, at random", func(t *testing.T, cfg engine.Config) {
		for i := range rounds(5, 200) {
			killed(t, cfg.TensorParallel, i == 0, func(_ int, all []int) {
				rand.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
				for _, pid := range all {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			})
		}
	})
}

// killed starts a victim in a folder for temporary files of its own, has it killed at a random
// moment, and looks for what is left. With core set the victim lives until its core does.
func killed(t *testing.T, devices int, core bool, kill func(parent int, all []int)) {
	t.Helper()
	tmp := t.TempDir()
	shared, sockets := names(t, "/dev/shm"), boundSockets(t)
	mark := strconv.Itoa(rand.Int())
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envVictim+"="+mark, fmt.Sprint(envDevices, "=", devices), "TMPDIR="+tmp)
	require.NoError(t, cmd.Start())
	if core {
		eventually(t, "the victim has a core", func() bool { return len(marked(mark)) > 1 })
	}
	time.Sleep(rand.N(60 * time.Millisecond))
	all := marked(mark)
	require.NotEmpty(t, all, "it can be found while it lives")
	kill(cmd.Process.Pid, all)
	died := time.Now()
	_ = cmd.Wait()
	var left []int
	for left = marked(mark); len(left) > 0 && time.Since(died) < time.Minute; left = marked(mark) {
		time.Sleep(time.Millisecond)
	}
	assert.Empty(t, left, "processes that outlive it")
	assert.Empty(t, names(t, tmp), "temporary files")
	assert.Subset(t, shared, ours(names(t, "/dev/shm")), "shared memory")
	assert.Subset(t, sockets, ours(boundSockets(t)), "sockets with a name")
}

// marked are the living processes that have the mark in their environment.
func marked(mark string) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// The environment of a zombie is empty.
		if env, err := os.ReadFile("/proc/" + entry.Name() + "/environ"); err == nil &&
			bytes.Contains(env, []byte(envVictim+"="+mark)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func boundSockets(t *testing.T) (paths []string) {
	t.Helper()
	table, err := os.ReadFile("/proc/net/unix")
	require.NoError(t, err)
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 7 {
			paths = append(paths, f[7])
		}
	}
	return paths
}

// ours leaves out what others on this machine make meanwhile.
func ours(names []string) (list []string) {
	for _, n := range names {
		if strings.Contains(n, "engine") {
			list = append(list, n)
		}
	}
	return list
}
