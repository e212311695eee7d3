//go:build linux

package forkproc_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/enginetest/enginetest/forkproc"
	"github.com/enginetest/enginetest/internal/proc"
)

const envMark = "FORKPROC_ORPHAN_MARK" // in the environment of a parent and of all that comes from it

// marked lists the living processes with the mark; a zombie is dead.
func marked(mark string) []string {
	var found []string
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		env, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(env, []byte(envMark+"="+mark+"\x00")) {
			continue
		}
		stat, err := os.ReadFile(filepath.Dir(file) + "/stat")
		if err != nil || bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" Z")) {
			continue
		}
		found = append(found, strings.TrimSpace(string(stat[:bytes.LastIndexByte(stat, ')')+1])))
	}
	return found
}

func waitNone(t *testing.T, mark string) {
	t.Helper()
	var left []string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if left = marked(mark); len(left) == 0 {
			return
		}
	}
	t.Errorf("still running: %v", left)
}

// TestOrphanParent is the parent that ends badly; the test below starts it.
func TestOrphanParent(t *testing.T) {
	how := os.Getenv("FORKPROC_HELPER")
	if how == "" {
		t.Skip("started by TestNoChildOutlivesItsParent")
	}
	api, ending, _ := strings.Cut(how, " ")
	up := os.Getenv("FORKPROC_UP")
	if api == "proc" {
		startUnder(t, up)
	} else {
		go waitAndEnd(ending, up)
		forkproc.Run(t, func(t *testing.T) {
			startGrandchild(t)
			touch(up)
			time.Sleep(time.Minute)
		})
	}
	waitFor(up + ".go")
	switch ending {
	case "fatal":
		t.Fatal("the test fails and does not care")
	case "panic":
		panic("in the goroutine of the test")
	default:
		waitAndEnd(ending, up)
	}
	time.Sleep(time.Minute)
}

// startUnder leaves a child behind that no code of this process will ever end.
func startUnder(t *testing.T, up string) {
	t.Helper()
	_, err := proc.Start(exec.Command("sh", "-c", "sleep 60 & touch "+up+"; sleep 61"))
	require.NoError(t, err)
}

func startGrandchild(t *testing.T) {
	t.Helper()
	require.NoError(t, exec.Command("sleep", "60").Start())
}

func waitAndEnd(ending, up string) {
	waitFor(up + ".go")
	switch ending {
	case "goroutine panic":
		panic("in another goroutine")
	case "os.Exit":
		os.Exit(3)
	}
}

func touch(path string) { _ = os.WriteFile(path, nil, 0o600) }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func waitFor(path string) {
	for end := time.Now().Add(time.Minute); !exists(path) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// The endings of 6.6, each with a child and a grandchild running.
func TestNoChildOutlivesItsParent(t *testing.T) {
	for _, e := range []struct {
		how    string
		signal syscall.Signal
		args   []string
		why    string
	}{
		{"proc alarm", 0, []string{"-test.timeout="}, "-timeout panics without cleanups"},
		{"proc fatal", 0, nil, "the process ends by itself"},
		{"proc panic", 0, nil, "a panic in the test"},
		{"run goroutine panic", 0, nil, "no cleanup runs"},
		{"run os.Exit", 0, nil, "no cleanup runs"},
		{"run wait", syscall.SIGKILL, nil, "nothing runs at all"},
		{"run wait", syscall.SIGINT, nil, "^C goes to the group of the terminal, which the child is not in"},
		{"run wait", syscall.SIGTERM, nil, "a scheduler stops the job"},
		{"run wait", syscall.SIGQUIT, nil, "the go command asks for stacks"},
	} {
		t.Run(strings.TrimSuffix(e.how+" "+signalText(e.signal), " "), func(t *testing.T) {
			t.Parallel()
			cmd, mark, up := startParent(t, e.how, e.args)
			touch(up + ".go")
			if e.signal != 0 {
				require.NoError(t, syscall.Kill(-cmd.Process.Pid, e.signal))
			}
			require.Error(t, cmd.Wait())
			waitNone(t, mark)
		})
	}
}

// startParent starts a parent and waits until all of it is there. One that its alarm ends before
// gets more time.
func startParent(t *testing.T, how string, args []string) (cmd *exec.Cmd, mark, up string) {
	t.Helper()
	for alarm := 300 * time.Millisecond; ; alarm *= 2 {
		mark = strconv.FormatUint(rand.Uint64(), 36)
		up = filepath.Join(t.TempDir(), "up")
		cmd = exec.Command(os.Args[0], "-test.run=^TestOrphanParent$")
		for _, arg := range args {
			cmd.Args = append(cmd.Args, arg+alarm.String())
		}
		// a killed parent leaves its files
		cmd.Env = append(os.Environ(), "FORKPROC_HELPER="+how, envMark+"="+mark, "FORKPROC_UP="+up,
			"TMPDIR="+filepath.Dir(up))
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		require.NoError(t, cmd.Start())
		var info unix.Siginfo // has a number when the parent is dead
		for waited := time.Duration(0); !exists(up) && info.Signo == 0 &&
			waited < time.Minute; waited += time.Millisecond {
			time.Sleep(time.Millisecond)
			_ = unix.Waitid(unix.P_PID, cmd.Process.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		}
		if exists(up) && len(marked(mark)) >= 2 { // something is there to outlive its parent
			return cmd, mark, up
		}
		require.Less(t, alarm, time.Minute, "the parent never came up")
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

func signalText(s syscall.Signal) string {
	if s == 0 {
		return ""
	}
	return s.String()
}

// SIGKILL at any moment from the parent's own start to the end of its child: 40 times, 500 with
// ENGINETEST_LONG=1.
func TestNoSurvivorOfRandomKills(t *testing.T) {
	rounds := 40
	if os.Getenv("ENGINETEST_LONG") != "" {
		rounds = 500
	}
	tmp := t.TempDir()
	var group sync.WaitGroup
	slots := make(chan bool, 4)
	for i := range rounds {
		slots <- true
		group.Go(func() {
			defer func() { <-slots }()
			mark := fmt.Sprintf("r%d-%x", i, rand.Uint64())
			cmd := exec.Command(os.Args[0], "-test.run=^TestOrphanLoop$")
			cmd.Env = append(os.Environ(), "FORKPROC_HELPER=loop", envMark+"="+mark, "TMPDIR="+tmp)
			if err := cmd.Start(); err != nil {
				t.Error(err)
				return
			}
			time.Sleep(time.Duration(rand.Int64N(int64(120 * time.Millisecond))))
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			waitNone(t, mark)
		})
	}
	group.Wait()
}

// TestOrphanLoop starts child after child, each with a grandchild.
func TestOrphanLoop(t *testing.T) {
	if os.Getenv("FORKPROC_HELPER") != "loop" {
		t.Skip("started by TestNoSurvivorOfRandomKills")
	}
	for i := range 1000 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			forkproc.Run(t, func(t *testing.T) {
				startGrandchild(t)
				time.Sleep(5 * time.Millisecond)
			}, forkproc.Accept("sleep"), forkproc.WaitDelay(0))
		})
	}
}
