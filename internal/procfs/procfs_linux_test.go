package procfs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/internal/procfs"
)

// A program's name may hold all that the line separates its fields with.
func TestOddName(t *testing.T) {
	sh, err := exec.LookPath("sh")
	require.NoError(t, err)
	odd := filepath.Join(t.TempDir(), "a) Z 1 (b")
	require.NoError(t, os.Symlink(sh, odd))
	cmd := exec.Command(odd, "-c", "read line")
	cmd.Env = []string{"NAME=first", "NAME=last", "NAMES=other"}
	_, err = cmd.StdinPipe() // so that it waits
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	pid := cmd.Process.Pid
	require.Eventually(t, func() bool {
		return procfs.CommandLine(pid) == "a) Z 1 (b -c read line"
	}, time.Minute, time.Millisecond)
	st, ok := procfs.StatOf(pid)
	require.True(t, ok)
	require.Equal(t, "a) Z 1 (b", st.Command)
	require.Equal(t, os.Getpid(), st.Parent)
	require.False(t, st.Dead())
	v, _ := procfs.Variable(pid, "NAME")
	require.Equal(t, "last", v)

	require.NoError(t, cmd.Process.Kill())
	require.Eventually(t, func() bool { st, _ := procfs.StatOf(pid); return st.Dead() }, time.Minute, time.Millisecond)
	_ = cmd.Wait()
	_, ok = procfs.StatOf(pid)
	require.False(t, ok)
	require.Empty(t, procfs.CommandLine(pid))
}
