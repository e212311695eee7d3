package proc

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hidden gets away from all that a family without a control group is known by.
const hidden = `(env -i setsid "$@" </dev/null >/dev/null 2>&1 3>&- &); sleep 62`

func needGroups(t *testing.T) {
	t.Helper()
	f := startFamily(t, exec.Command("true"))
	within(t, f.Gone(), "the family's end")
	if f.guard.group == "" {
		t.Skipf("no control group (version 2) can be made in %q", home())
	}
}

// What the supervisor leaves is in the group, whatever it hides from: named, and killed.
func TestGroupOutlivesTheSupervisor(t *testing.T) {
	needGroups(t)
	s := startScene(t, hidden)
	s.up(t)
	_, supervisor := s.leader()
	require.NoError(t, syscall.Kill(supervisor, syscall.SIGKILL))
	require.NoError(t, s.cmd.Wait())
	s.waitNone(t)
	require.NotContains(t, s.printed(), "lost")
}

// When the test process and the supervisor are killed at once, the next test process ends what they
// left; it spares a family that has its supervisor.
func TestStaleGroupsAreSwept(t *testing.T) {
	needGroups(t)
	living, stale := startScene(t, hidden), startScene(t, hidden)
	living.up(t)
	stale.up(t)
	server := stale.server()
	_, supervisor := stale.leader()
	freeze(t, stale.cmd.Process.Pid) // it must not see the end of the supervisor
	require.NoError(t, syscall.Kill(supervisor, syscall.SIGKILL))
	require.Eventually(t, func() bool { return !alive(supervisor) }, hang, time.Millisecond)
	require.NoError(t, stale.cmd.Process.Kill())
	require.Error(t, stale.cmd.Wait())
	require.True(t, alive(server), "nothing else ends it")

	next := startScene(t, "true")
	require.NoError(t, next.cmd.Wait())
	stale.waitNone(t)
	require.NotZero(t, living.server())
}

// freeze stops all threads of a process.
func freeze(t *testing.T, pid int) {
	t.Helper()
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	require.Eventually(t, func() bool {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		require.NoError(t, err)
		stopped := len(tasks) > 0
		for _, task := range tasks {
			b, _ := os.ReadFile(task)
			_, state, _ := strings.Cut(string(b), ") ")
			stopped = stopped && strings.HasPrefix(state, "T")
		}
		return stopped
	}, hang, time.Millisecond)
}

// A group's folder goes with its family, in whatever way that ends.
func TestGroupIsRemoved(t *testing.T) {
	needGroups(t)
	for _, victim := range []string{"launcher", "test process"} {
		s := startScene(t, `"$@" & sleep 62`)
		s.up(t)
		var leader, supervisor int
		var dir string
		_, err := fmt.Sscanf(s.printed(), "leader %d %d %s", &leader, &supervisor, &dir)
		require.NoError(t, err, s.printed())
		require.DirExists(t, dir)
		require.NotEmpty(t, group(dir).members())
		s.kill(victim)
		_ = s.cmd.Wait()
		s.waitNone(t)
		require.Eventually(t, func() bool { _, err := os.Stat(dir); return err != nil }, hang, time.Millisecond, dir)
	}
}
