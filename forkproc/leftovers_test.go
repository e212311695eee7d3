//go:build linux

package forkproc_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/enginetest/enginetest/forkproc"
	"github.com/enginetest/enginetest/internal/origin"
)

// rootPID makes names that the parent and its children agree on.
func rootPID() string { return os.Getenv("FORKPROC_ROOT") }

// inParent registers a cleanup that the children, which run the code above Run too, must not do.
func inParent(t *testing.T, f func()) {
	t.Helper()
	if !forkproc.InChild() {
		t.Cleanup(f)
	}
}

// Each row leaves one thing behind; it must be found and named, and the option must accept it.
func TestLeftovers(t *testing.T) {
	shm := fmt.Sprintf("/dev/shm/forkproc-test-%s", rootPID())
	sock := fmt.Sprintf("forkproc-test-%s.sock", rootPID())
	inParent(t, func() { _ = os.Remove(shm); _ = os.Remove(sock) })
	for _, row := range []struct {
		name   string
		body   func(*testing.T)
		want   string
		accept string
	}{
		{"process", func(t *testing.T) {
			require.NoError(t, exec.Command("sleep", "71").Start())
		}, `process \d+ \(sleep 71\), re-parented, killed now`, "sleep"},
		{"daemon", func(t *testing.T) {
			// It waits for its child to be sleep, and not a copy of sh any more.
			require.NoError(t, exec.Command("setsid", "sh", "-c",
				"sleep 72 >/dev/null 2>&1 & until grep -q ^sleep /proc/$!/comm; do :; done").Run())
		}, `process \d+ \(sleep 72\), setsid, re-parented, killed now`, "sleep"},
		{"daemon without a trace", func(t *testing.T) {
			require.NoError(t, exec.Command("sh", "-c", "(env -i setsid sleep 75 </dev/null >/dev/null 2>&1 3>&- & until grep -q ^sleep /proc/$!/comm; do :; done) 3>&-").Run())
		}, `process \d+ \(sleep 75\), setsid, re-parented, cleared environment, killed now`, "sleep"},
		{"server", startServer, `process \d+ \(.*\), re-parented, listening on tcp 127.0.0.1:\d+, killed now`, "*"},
		{"shared memory", func(t *testing.T) {
			require.NoError(t, os.WriteFile(shm, make([]byte, 4096), 0o600))
		}, `shared memory ` + shm + ` \(4.0 KiB\), made by process \d+.*; to remove it: rm -r ` + shm, "/dev/shm/forkproc-test-*"},
		{"System V shared memory", func(t *testing.T) {
			_, err := unix.SysvShmGet(unix.IPC_PRIVATE, 8192, unix.IPC_CREAT|0o600)
			require.NoError(t, err)
		}, `System V shared memory \d+ \(8.0 KiB, made by pid \d+, attached 0 times\); to remove it: ipcrm -m \d+`, "shm *"},
		{"socket", func(t *testing.T) {
			l, err := net.Listen("unix", sock)
			require.NoError(t, err)
			l.(*net.UnixListener).SetUnlinkOnClose(false)
		}, `socket .*` + sock, "*.sock"},
		{"temporary file", func(t *testing.T) {
			f, err := os.CreateTemp("", "model-*.bin")
			require.NoError(t, err)
			_, _ = f.WriteString("weights")
		}, `temporary file model-\d+.bin \(7 B\), removed now`, "model-*.bin"},
		{"temporary folder", func(t *testing.T) {
			dir, err := os.MkdirTemp("", "cache")
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "x"), make([]byte, 20<<10), 0o600))
		}, `temporary folder cache\d+ \(1 files, 20.0 KiB\), removed now`, "cache*"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if strings.HasPrefix(row.name, "System V") {
				t.Cleanup(removeSegments)
			}
			o := forkproc.Run(t, row.body, forkproc.WaitDelay(30*time.Millisecond), forkproc.Report)
			if row.name == "shared memory" && makersHidden() {
				require.Len(t, o.Unattributed, 1)
				require.Contains(t, o.Unattributed[0].Text, shm+" (4.0 KiB), not attributed: who makes files in /dev/shm is not known")
				return
			}
			require.Len(t, o.Leftovers, 1)
			require.Regexp(t, "^"+row.want+"$", o.Leftovers[0].Text)
			_, _ = os.Remove(shm), os.Remove(sock)
			o = forkproc.Run(t, row.body, forkproc.WaitDelay(30*time.Millisecond), forkproc.Accept(row.accept))
			require.Empty(t, o.Leftovers)
			_, _ = os.Remove(shm), os.Remove(sock)
		})
	}
}

// A segment that another program makes meanwhile, and leaves, is not the child's.
func TestSegmentsOfOthersAreNotBlamed(t *testing.T) {
	t.Cleanup(removeSegments)
	o := forkproc.Run(t, func(t *testing.T) {
		if os.Getenv("FORKPROC_TEST_SEGMENT") != "" {
			return
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestMakesASegment$")
		cmd.Env = append(os.Environ(), "FORKPROC_TEST_SEGMENT=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		segments, err := os.ReadFile("/proc/sysvipc/shm")
		require.NoError(t, err)
		require.Regexp(t, fmt.Sprintf(` 8192 +%d `, cmd.Process.Pid), string(segments), "it is there, and its maker is not")
	}, forkproc.Report)
	require.Empty(t, o.Leftovers)
}

// TestMakesASegment is the other program of TestSegmentsOfOthersAreNotBlamed.
func TestMakesASegment(t *testing.T) {
	if os.Getenv("FORKPROC_TEST_SEGMENT") == "" {
		return
	}
	_, err := unix.SysvShmGet(unix.IPC_PRIVATE, 8192, unix.IPC_CREAT|0o600)
	require.NoError(t, err)
}

// startServer leaves a process that holds a listening socket.
func startServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f, err := l.(*net.TCPListener).File()
	require.NoError(t, err)
	cmd := exec.Command("sleep", "73")
	cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	require.NoError(t, cmd.Start())
}

func removeSegments() {
	b, _ := os.ReadFile("/proc/sysvipc/shm")
	for line := range strings.Lines(string(b)) {
		var key, id, perms, size, cpid int
		if n, _ := fmt.Sscan(line, &key, &id, &perms, &size, &cpid); n == 5 && size == 8192 &&
			syscall.Kill(cpid, 0) != nil {
			_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
		}
	}
}

// Clean tests of every kind of resource: nothing to report.
func TestNoLeftovers(t *testing.T) {
	o := forkproc.Run(t, func(t *testing.T) {
		require.NoError(t, exec.Command("true").Run())
		require.NoError(t, os.WriteFile(filepath.Join(t.TempDir(), "f"), nil, 0o600))
		name := fmt.Sprintf("/dev/shm/forkproc-clean-%s", rootPID())
		require.NoError(t, os.WriteFile(name, nil, 0o600))
		require.NoError(t, os.Remove(name))
		l, err := net.Listen("unix", fmt.Sprintf("forkproc-%s.sock", rootPID()))
		require.NoError(t, err)
		require.NoError(t, l.Close())
	})
	require.Empty(t, o.Leftovers)
}

// Shared memory that a living process uses is not left over, whoever made it.
func TestSharedMemoryInUse(t *testing.T) {
	name := fmt.Sprintf("/dev/shm/forkproc-used-%s", rootPID())
	inParent(t, func() { _ = os.Remove(name) })
	seen := filepath.Join(t.TempDir(), "seen")
	opened := make(chan *os.File, 1)
	if !forkproc.InChild() {
		go func() {
			waitFor(name)
			f, _ := os.Open(name)
			opened <- f
			touch(seen)
		}()
	}
	o := forkproc.Run(t, func(t *testing.T) {
		require.NoError(t, os.WriteFile(name, nil, 0o600))
		waitFor(os.Getenv("SEEN"))
	}, forkproc.Env("SEEN="+seen))
	require.Empty(t, o.Leftovers)
	require.NoError(t, (<-opened).Close())
}

// A killed child cannot clean up: shared memory counts, its private temporary folder does not.
func TestLeftoversOfAKilledChild(t *testing.T) {
	name := fmt.Sprintf("/dev/shm/forkproc-killed-%s", rootPID())
	inParent(t, func() { _ = os.Remove(name) })
	o := forkproc.Run(t, func(t *testing.T) {
		require.NoError(t, os.WriteFile(name, nil, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(t.TempDir(), "f"), nil, 0o600))
		kill(syscall.SIGKILL)
	}, forkproc.Expect(forkproc.Killed(syscall.SIGKILL)), forkproc.Report)
	found := o.Leftovers
	if !told(t) {
		found = append(found, o.Unattributed...) // closed by a process that is gone: no evidence may be left
	}
	require.Len(t, found, 1)
	require.Contains(t, found[0].Text, name)
	if told(t) {
		require.Regexp(t, fmt.Sprintf(`made by process %d \(.*-test.run`, o.PID), found[0].Text)
	}
}

// makersHidden reports whether the kernel does not even tell a process what it made itself.
func makersHidden() bool {
	w := origin.Watch("/dev/shm")
	defer w.Close()
	return w.Err("/dev/shm") != nil
}

// told reports whether the kernel tells this process who makes files in /dev/shm.
func told(t *testing.T) bool {
	w := origin.Watch("/dev/shm")
	defer w.Close()
	t.Logf("fanotify: %v, for every process: %v", w.Err("/dev/shm"), w.Every("/dev/shm"))
	return w.Every("/dev/shm")
}

// What another program leaves in /dev/shm while the child runs is not the child's, whether it still
// runs or has ended; the child's own file beside it is.
func TestSharedMemoryOfOthersIsNotBlamed(t *testing.T) {
	mine := fmt.Sprintf("/dev/shm/forkproc-mine-%s", rootPID())
	theirs := fmt.Sprintf("/dev/shm/forkproc-theirs-%s", rootPID())
	inParent(t, func() { _ = os.Remove(mine) })
	inParent(t, func() { _ = os.Remove(theirs) })
	inParent(t, func() { _ = os.Remove(theirs + "-ended") })
	dir := t.TempDir()
	started, left := filepath.Join(dir, "started"), filepath.Join(dir, "left")
	ended := make(chan error, 1)
	if !forkproc.InChild() {
		neighbor := exec.Command("sh", "-c", ": > "+theirs+"; echo; exec sleep 600")
		out, err := neighbor.StdoutPipe()
		require.NoError(t, err)
		t.Cleanup(func() { _ = neighbor.Process.Kill(); _ = neighbor.Wait() })
		go func() {
			waitFor(started)
			err := exec.Command("sh", "-c", ": > "+theirs+"-ended").Run()
			if startErr := neighbor.Start(); err == nil {
				err = startErr
			}
			_, _ = out.Read(make([]byte, 1))
			touch(left)
			ended <- err
		}()
	}
	o := forkproc.Run(t, func(t *testing.T) {
		touch(os.Getenv("STARTED"))
		waitFor(os.Getenv("LEFT"))
		require.NoError(t, os.WriteFile(mine, nil, 0o600))
	}, forkproc.Env("STARTED="+started, "LEFT="+left), forkproc.Report)
	require.NoError(t, <-ended)
	if makersHidden() {
		require.Empty(t, o.Leftovers)
		require.Len(t, o.Unattributed, 3)
		return
	}
	require.Len(t, o.Leftovers, 1)
	require.Equal(t, mine, o.Leftovers[0].Name)
	require.Contains(t, o.Leftovers[0].Text, fmt.Sprintf("made by process %d", o.PID))
	for _, l := range o.Unattributed { // at most: where the kernel tells every maker in time, none
		require.Contains(t, l.Name, theirs)
		require.Contains(t, l.Text, "not attributed")
	}
}

// A file that a process below the child made and still has open when the child is killed, is the
// child's, with its maker.
func TestSharedMemoryOfAGrandchild(t *testing.T) {
	name := fmt.Sprintf("/dev/shm/forkproc-grandchild-%s", rootPID())
	inParent(t, func() { _ = os.Remove(name) })
	o := forkproc.Run(t, func(t *testing.T) {
		cmd := exec.Command("setsid", "sh", "-c", "exec 5<>"+name+"; echo; kill -STOP $$")
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		_, err = out.Read(make([]byte, 1))
		require.NoError(t, err)
		kill(syscall.SIGKILL)
	}, forkproc.Expect(forkproc.Killed(syscall.SIGKILL)), forkproc.Report)
	require.Len(t, o.Leftovers, 2)
	require.Equal(t, name, o.Leftovers[1].Name)
	require.Regexp(t, `process \d+ \(.*sh -c`, o.Leftovers[1].Text)
}

// A grandchild that holds the output open does not hold up the verdict.
func TestGrandchildHoldsTheOutput(t *testing.T) {
	start := time.Now()
	o := forkproc.Run(t, func(t *testing.T) {
		cmd := exec.Command("sleep", "74")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		require.NoError(t, cmd.Start())
	}, forkproc.WaitDelay(50*time.Millisecond), forkproc.Report)
	require.Less(t, time.Since(start), 74*time.Second, "it waited for the grandchild")
	require.Equal(t, forkproc.StatusPassed, o.Status)
	require.Len(t, o.Leftovers, 1)
	require.Contains(t, o.Leftovers[0].Text, "sleep 74")
}
