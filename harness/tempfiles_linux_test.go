package harness_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/internal/origin"
)

// leavesFiles plants one kind of file. It returns the path that is left, "" for a clean one.
type leavesFiles struct {
	name  string
	leaks bool
	plant func(t *testing.T, e *toy) string
}

func shmName(t *testing.T, prefix string) string {
	path := filepath.Join("/dev/shm", prefix+"planted-"+strconv.FormatUint(rand.Uint64(), 36))
	t.Cleanup(func() { os.Remove(path) })
	return path
}

// program starts a process of the engine, which Shutdown kills, and waits for its first byte.
func program(e *toy, command ...string) {
	c := exec.Command(command[0], command[1:]...)
	out := must(c.StdoutPipe())
	must(0, c.Start())
	must(out.Read(make([]byte, 1)))
	e.children = append(e.children, c)
	e.onClose = func(context.Context) error {
		c.Process.Kill()
		c.Wait()
		return nil
	}
}

var fileLeaks = []leavesFiles{
	{"a closed file", true, func(*testing.T, *toy) string {
		f := must(os.CreateTemp("", "engine-*.bin"))
		return must(f.Name(), f.Close())
	}},
	{"a closed file of shared memory", true, func(t *testing.T, _ *toy) string {
		path := shmName(t, "")
		return must(path, os.WriteFile(path, make([]byte, 100), 0o600))
	}},
	{"a folder", true, func(*testing.T, *toy) string { return must(os.MkdirTemp("", "blocks")) }},
	{"a file that was renamed", true, func(t *testing.T, _ *toy) string {
		path := filepath.Join(os.TempDir(), "renamed")
		must(0, os.WriteFile(filepath.Join(t.TempDir(), "new"), nil, 0o600))
		return must(path, os.Rename(filepath.Join(filepath.Dir(t.TempDir()), "001", "new"), path))
	}},
	{"a unix socket", true, func(*testing.T, *toy) string {
		path := filepath.Join(os.TempDir(), "engine.sock")
		l := must(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}))
		l.SetUnlinkOnClose(false)
		return must(path, l.Close())
	}},
	{"a semaphore that its process had open", true, func(t *testing.T, e *toy) string {
		path := shmName(t, "sem.")
		program(e, "sh", "-c", "exec 3<>"+path+"; echo; exec sleep 600")
		return path
	}},
	{"a file named after its process", true, func(_ *testing.T, e *toy) string {
		program(e, "sh", "-c", ": > $TMPDIR/engine-$$.pid; echo; exec sleep 600")
		return filepath.Join(os.TempDir(), fmt.Sprintf("engine-%d.pid", e.children[0].Process.Pid))
	}},
	{"the socket of a server that was killed", true, func(_ *testing.T, e *toy) string {
		path := filepath.Join(os.TempDir(), "server.sock")
		must(0, os.Setenv("SERVER_SOCKET", path))
		program(e, os.Args[0], "-test.run", "^TestChildServer$")
		return path
	}},
	{"nothing", false, func(*testing.T, *toy) string { return "" }},
	{"a file that was removed", false, func(*testing.T, *toy) string {
		f := must(os.CreateTemp("", ""))
		f.Close()
		return must("", os.Remove(f.Name()))
	}},
	{"the test's own folder", false, func(t *testing.T, _ *toy) string {
		return must("", os.WriteFile(filepath.Join(t.TempDir(), "x"), nil, 0o600))
	}},
	{"the go command's folder", false, func(*testing.T, *toy) string {
		return must("", os.Mkdir(os.TempDir()+"/go-build77", 0o700))
	}},
	{"another process's files", false, func(t *testing.T, _ *toy) string {
		// The process that runs this one makes them, when it reads the line.
		fmt.Println("NEIGHBOR")
		require.Eventually(t, func() bool { _, err := os.Stat(os.TempDir() + "/neighbor"); return err == nil },
			time.Minute, time.Millisecond)
		return ""
	}},
}

// TestChildServer is a server that listens until it is killed.
func TestChildServer(t *testing.T) {
	onlyInChild(t)
	if path := os.Getenv("SERVER_SOCKET"); path != "" {
		l := must(net.Listen("unix", path))
		fmt.Print("\n")
		_, _ = l.Accept()
	}
}

// hurried keeps the waits of checks short that are to fail.
var hurried = append(noGPU[:len(noGPU):len(noGPU)], harness.TeardownTimeout(12*time.Second))

// TestChildFiles runs a life for each of fileLeaks.
func TestChildFiles(t *testing.T) {
	onlyInChild(t)
	for id, row := range fileLeaks {
		t.Run(row.name, func(t *testing.T) {
			opts := noGPU
			if row.leaks {
				opts = hurried
			}
			var path string
			r := harness.Start(t, func(ctx context.Context) (*toy, error) {
				e := must(openToy(ctx))
				path = row.plant(t, e)
				return e, nil
			}, opts...)
			j := judgement{ID: id, Token: path}
			if err := r.Stop().Err(); err != nil {
				j.Errors = err.Error()
			}
			j.Failed = t.Failed()
			require.NoError(t, os.WriteFile(fmt.Sprintf("%s/%03d.judgement", os.Getenv("PLANTED_DIR"), id),
				must(json.Marshal(j)), 0o600))
		})
	}
}

// TestFilesThatAreLeft plants files in $TMPDIR and /dev/shm, made by this process, a process of the
// engine, and neither: with the rights to see every maker, and without.
func TestFilesThatAreLeft(t *testing.T) {
	if testing.Short() {
		t.Skip("processes that each wait for a leak")
	}
	w := origin.Watch(os.TempDir(), "/dev/shm")
	defer w.Close()
	for _, dir := range []string{os.TempDir(), "/dev/shm"} {
		if err := w.Err(dir); err != nil {
			t.Skipf("this system does not tell who makes files in %s: %v", dir, err)
		}
	}
	for _, rights := range []bool{true, false} {
		t.Run(fmt.Sprintf("rights=%v", rights), func(t *testing.T) {
			dir := t.TempDir()
			left := t.TempDir()
			out := runBeside(t, rights, "^TestChildFiles$", dir, "PLANTED_DIR="+left)
			list := judgements(t, left)
			require.Len(t, list, len(fileLeaks), out)
			for _, j := range list {
				row := fileLeaks[j.ID]
				require.Equal(t, row.leaks, j.Token != "", row.name)
				assert.Equal(t, row.leaks, j.Failed, "%s: %+v\n%s", row.name, j, out)
				if row.leaks {
					assert.Contains(t, j.Errors, j.Token+" is left behind", row.name)
				}
			}
		})
	}
}

// runBeside runs a test in a process of its own with a folder for temporary files. When it prints
// NEIGHBOR, this process makes files in the shared folders.
func runBeside(t *testing.T, rights bool, test, dir string, env ...string) string {
	t.Helper()
	c := exec.Command(os.Args[0], "-test.run", test, "-test.v=test2json", "-test.count=1", "-test.timeout=2h")
	c.Env = append(append(os.Environ(), "HARNESS_CHILD=1", "TMPDIR="+dir), env...)
	pipe := must(c.StdoutPipe())
	c.Stderr = c.Stdout
	startWith(t, rights, c)
	var out strings.Builder
	buf := make([]byte, 64<<10)
	for made := false; ; {
		n, err := pipe.Read(buf)
		out.Write(buf[:n])
		if err != nil {
			break
		}
		if !made && strings.Contains(out.String(), "NEIGHBOR\n") {
			made = true
			shm := shmName(t, "neighbor")
			require.NoError(t, os.WriteFile(shm, nil, 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "neighbor"), nil, 0o600))
		}
	}
	_ = c.Wait() // its tests fail
	return out.String()
}

// startWith starts a command, without rights on a thread that has given them up and ends.
func startWith(t *testing.T, rights bool, c *exec.Cmd) {
	t.Helper()
	if rights {
		require.NoError(t, c.Start())
		return
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_ADMIN, 0, 0, 0)
		if err != nil && !errors.Is(err, unix.EPERM) { // it has none
			started <- err
			return
		}
		started <- c.Start()
	}()
	require.NoError(t, <-started)
}

// TestChildNoise makes and removes files until its input ends.
func TestChildNoise(t *testing.T) {
	onlyInChild(t)
	done := make(chan bool)
	go func() { _, _ = os.Stdin.Read(make([]byte, 1)); close(done) }()
	var mine []string
	random := rand.New(rand.NewPCG(uint64(os.Getpid()), 0))
	for {
		select {
		case <-done:
			for _, path := range mine {
				os.RemoveAll(path)
			}
			return
		case <-time.After(time.Millisecond):
		}
		dir := os.TempDir()
		if random.IntN(2) == 0 {
			dir = "/dev/shm"
		}
		switch random.IntN(4) {
		case 0:
			if f, err := os.CreateTemp(dir, "noise-*"); err == nil {
				f.Close()
				mine = append(mine, f.Name())
			}
		case 1:
			if d, err := os.MkdirTemp(dir, "noise"); err == nil {
				mine = append(mine, d)
			}
		case 2:
			path := filepath.Join(dir, fmt.Sprintf("noise-%d-%d", os.Getpid(), random.IntN(1<<20)))
			if os.WriteFile(path, []byte("x"), 0o600) == nil {
				mine = append(mine, path)
			}
		case 3:
			if len(mine) > 20 {
				i := random.IntN(len(mine))
				os.RemoveAll(mine[i])
				mine = slices.Delete(mine, i, i+1)
			}
		}
	}
}

// TestChildFileLives runs clean lives that use temporary files; every fourth has a process.
func TestChildFileLives(t *testing.T) {
	onlyInChild(t)
	for i := range must(strconv.Atoi(os.Getenv("LIVES"))) {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			harness.Start(t, func(ctx context.Context) (*toy, error) {
				e := must(openToy(ctx))
				f := must(os.CreateTemp("", "life"))
				f.Close()
				os.Remove(f.Name())
				if i%4 == 0 {
					program(e, "sh", "-c", "echo; exec sleep 600")
				}
				return e, nil
			}, noGPU...)
		})
	}
}

// TestCleanLivesBesideNoise: a neighbor makes and removes files in the same folders all the time,
// and no clean life is blamed for one.
func TestCleanLivesBesideNoise(t *testing.T) {
	lives := 20
	if long := os.Getenv("ENGINETEST_LONG"); long != "" {
		lives = 1000
		if n, err := strconv.Atoi(long); err == nil && n > 1 {
			lives = n
		}
	}
	for _, rights := range []bool{true, false} {
		dir := t.TempDir()
		noise := exec.Command(os.Args[0], "-test.run", "^TestChildNoise$")
		noise.Env = append(os.Environ(), "HARNESS_CHILD=1", "TMPDIR="+dir)
		stop := must(noise.StdinPipe())
		require.NoError(t, noise.Start())
		out := runBeside(t, rights, "^TestChildFileLives$", dir, "LIVES="+strconv.Itoa(lives))
		stop.Close()
		require.NoError(t, noise.Wait())
		passed := strings.Count(out, "--- PASS: TestChildFileLives/")
		assert.Equal(t, lives, passed, out)
		t.Logf("rights=%v: %d clean lives, %d alarms", rights, passed,
			strings.Count(out, "--- FAIL: TestChildFileLives/"))
	}
}
