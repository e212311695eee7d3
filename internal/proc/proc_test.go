//go:build linux

package proc

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func start(t *testing.T, args ...string) *Child {
	t.Helper()
	c, err := StartChild(exec.Command(args[0], args[1:]...))
	require.NoError(t, err)
	t.Cleanup(func() { c.Kill(); <-c.Done(); c.Sweep(0) })
	return c
}

func TestStartTellsTheEnd(t *testing.T) {
	c := start(t, "sh", "-c", "exit 3")
	<-c.Done()
	require.Equal(t, 3, c.State().ExitCode())
	require.Empty(t, c.Sweep(0))
	require.ErrorIs(t, c.Signal(syscall.SIGTERM), os.ErrProcessDone)

	c = start(t, "sleep", "60")
	require.Nil(t, c.State())
	c.Kill()
	<-c.Done()
	require.Equal(t, syscall.SIGKILL, c.State().Sys().(syscall.WaitStatus).Signal())

	_, err := StartChild(exec.Command("/no/such/program"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// Survivors of each kind are named, killed and reaped; each row hides one more way than the one before.
func TestSweepFindsSurvivors(t *testing.T) {
	for _, row := range []struct {
		script string
		name   string
		why    string
	}{
		{"sleep 61 & exit 0", "sleep 61", "in the group"},
		{"setsid sleep 62 & exit 0", "sleep 62", "another session: by its environment"},
		{"env -i setsid sleep 63 & exit 0", "sleep 63", "no environment either: by the lifeline that it inherited"},
		{"setsid sh -c 'sleep 64; true' & exit 0", "sleep 64", "a tree"},
	} {
		t.Run(row.why, func(t *testing.T) {
			c := start(t, "sh", "-c", row.script)
			<-c.Done()
			found := c.Sweep(30 * time.Millisecond)
			require.NotEmpty(t, found)
			var all []string
			for _, p := range found {
				all = append(all, p.Command)
				require.False(t, alive(p.PID), "%v is alive", p)
			}
			require.Contains(t, strings.Join(all, "; "), row.name)
			require.Empty(t, c.Sweep(0))
		})
	}
}

func TestSweepWaitsForTheGrace(t *testing.T) {
	c := start(t, "sh", "-c", "sleep 0.1 & exit 0")
	<-c.Done()
	require.Empty(t, c.Sweep(5*time.Second), "it ended by itself")
}

// Children of this process that another part of it started are none of the sweep's business.
func TestSweepLeavesOthersAlone(t *testing.T) {
	other := exec.Command("setsid", "sleep", "60")
	require.NoError(t, other.Start())
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	second := start(t, "sleep", "60")
	c := start(t, "true")
	<-c.Done()
	require.Empty(t, c.Sweep(0))
	require.True(t, alive(other.Process.Pid))
	require.True(t, alive(second.PID()))
}

func TestReaperIsGivenBack(t *testing.T) {
	require.False(t, isReaper(), "left over from another test")
	c := start(t, "sleep", "60")
	require.True(t, isReaper())
	c.Kill()
	<-c.Done()
	require.Empty(t, c.Sweep(0))
	require.False(t, isReaper())
}

// The kernel kills the group when the parent's end of the lifeline closes; here the parent lets go of it and lives.
func TestLifelineKillsTheGroup(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	c := start(t, "sh", "-c", "sleep 60 & echo $! >"+pids+"; wait")
	var grandchild int
	require.Eventually(t, func() bool {
		b, _ := os.ReadFile(pids)
		grandchild, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		return grandchild > 0
	}, 5*time.Second, time.Millisecond)
	require.NoError(t, c.life.w.Close())
	<-c.Done()
	require.Equal(t, syscall.SIGKILL, c.State().Sys().(syscall.WaitStatus).Signal())
	require.Eventually(t, func() bool { return !alive(grandchild) }, 5*time.Second, time.Millisecond)
}

func TestThreadOfTheParentMayEnd(t *testing.T) {
	// Pdeathsig follows the thread that forked. A caller whose thread ends must not take the child with it.
	ch := make(chan *Child, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		c, err := StartChild(exec.Command("sleep", "60"))
		if err != nil {
			t.Error(err)
			close(ch)
			return
		}
		ch <- c
	}()
	c := <-ch
	require.NotNil(t, c)
	defer func() { c.Kill(); <-c.Done(); c.Sweep(0) }()
	time.Sleep(50 * time.Millisecond)
	require.Nil(t, c.State(), "the child died with the thread of the caller")
}

func TestListening(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer tcp.Close()
	six, err := net.Listen("tcp", "[::1]:0")
	path := filepath.Join(t.TempDir(), "s")
	local, err2 := net.Listen("unix", path)
	require.NoError(t, err2)
	defer local.Close()
	got := listening(os.Getpid())
	require.Contains(t, got, "tcp "+tcp.Addr().String())
	require.Contains(t, got, "unix "+path)
	if err == nil {
		require.Contains(t, got, "tcp "+six.Addr().String())
		_ = six.Close()
	}
	require.True(t, InUse(path))
	require.NotContains(t, listening(unix.Getppid()), "unix "+path)
}
