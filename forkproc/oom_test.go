//go:build linux

package forkproc_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/forkproc"
)

// A child that is killed by the kernel for its memory, in a cgroup with a limit; that needs root.
func TestOOMKill(t *testing.T) {
	dir, err := limitedGroup(256 << 20)
	if err != nil {
		t.Skipf("no memory cgroup can be made here: %v", err)
	}
	defer os.Remove(dir)
	// The kernel may choose a second process while the first one dies: all but the child are exempt.
	join := fmt.Sprintf(`echo -1000 >/proc/self/oom_score_adj; echo $$ >%s/cgroup.procs && exec "$@"`, dir)
	cmd := exec.Command("sh", "-c", join, "sh", os.Args[0], "-test.run=^TestOOMVictim$", "-test.v")
	cmd.Env = append(os.Environ(), "FORKPROC_HELPER=oom")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "oom_kill counter of this cgroup rose from 0 to 1", "%s", out)
	require.Contains(t, string(out), "was killed by SIGKILL, as expected")
}

func TestOOMVictim(t *testing.T) {
	if os.Getenv("FORKPROC_HELPER") != "oom" {
		t.Skip("started by TestOOMKill")
	}
	o := forkproc.Run(t, func(*testing.T) {
		if err := os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0); err != nil {
			panic(err)
		}
		var held [][]byte
		for {
			b := make([]byte, 16<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			held = append(held, b)
			_ = held
		}
	}, forkproc.Expect(forkproc.OOMKilled()))
	t.Log(o.Note)
}

// limitedGroup makes a memory cgroup (v1 or v2) below the one of this process.
func limitedGroup(limit int) (string, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		var base, file string
		switch {
		case f[1] == "memory":
			base, file = "/sys/fs/cgroup/memory"+f[2], "memory.limit_in_bytes"
		case f[0] == "0":
			base, file = "/sys/fs/cgroup"+f[2], "memory.max"
		default:
			continue
		}
		dir := filepath.Join(base, "forkproc-test-"+strconv.Itoa(os.Getpid()))
		if err = os.Mkdir(dir, 0o755); err != nil {
			continue
		}
		if err = os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(limit)), 0); err != nil {
			_ = os.Remove(dir)
			continue
		}
		return dir, nil
	}
	return "", fmt.Errorf("none is writable (%w)", err)
}
