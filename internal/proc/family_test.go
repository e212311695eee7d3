//go:build linux

package proc

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const hang = time.Minute // an event that takes longer never comes

func within(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(hang):
		t.Fatalf("waited a minute for: %s", what)
	}
}

func startFamily(t *testing.T, cmd *exec.Cmd) *Family {
	t.Helper()
	f, err := Start(cmd)
	require.NoError(t, err)
	t.Cleanup(func() { f.Stop(context.Background(), StopOptions{}) })
	return f
}

func sh(script string, args ...string) *exec.Cmd {
	return exec.Command("sh", append([]string{"-c", script, "sh"}, args...)...)
}

func TestFamilyExit(t *testing.T) {
	for _, row := range []struct {
		script string
		want   string
	}{
		{"exit 0", "exited with code 0"},
		{"exit 7", "exited with code 7"},
		{"kill -SEGV $$", "was killed by SIGSEGV"},
		{"kill -KILL $$", "was killed by SIGKILL"},
	} {
		f := startFamily(t, sh(row.script))
		within(t, f.Done(), "the leader's exit")
		within(t, f.Gone(), "the family's end")
		e, ok := f.Exit()
		require.True(t, ok)
		require.Equal(t, row.want, e.String())
		require.ErrorIs(t, f.Signal(syscall.SIGTERM), os.ErrProcessDone)
		r := f.Stop(t.Context(), StopOptions{})
		require.Zero(t, r.Signal)
		require.Empty(t, r.Orphans)
	}
}

func TestFamilyDoesNotStart(t *testing.T) {
	_, err := Start(exec.Command("/no/such/program"))
	require.EqualError(t, err, "fork/exec /no/such/program: no such file or directory")
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Start(exec.Command("no-such-program"))
	require.ErrorIs(t, err, exec.ErrNotFound)
	cmd := exec.Command("true")
	cmd.Dir = "/no/such/folder"
	_, err = Start(cmd)
	require.EqualError(t, err, "chdir /no/such/folder: no such file or directory")
	cmd = exec.Command("true")
	cmd.Stdin = strings.NewReader("")
	_, err = Start(cmd)
	require.EqualError(t, err, "proc: Stdin is a *strings.Reader, must be nil or an *os.File")
	cmd = exec.Command("true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: "/"}
	_, err = Start(cmd)
	require.EqualError(t, err, "proc: SysProcAttr may only set Setsid and Setpgid")
	require.Empty(t, ownChildren(t))
}

// The leader has what exec.Cmd would give it, and nothing else: no descriptor of the supervisor.
func TestFamilyPassesTheCommandOn(t *testing.T) {
	dir := t.TempDir()
	extra, err := os.Create(filepath.Join(dir, "extra"))
	require.NoError(t, err)
	defer extra.Close()
	var out, errs bytes.Buffer
	cmd := sh(`echo "$1|$2|$A|$PWD"; echo to stderr >&2; echo extra >&3; ls /proc/self/fd | tr '\n' ' '`, "a b", "")
	cmd.Dir, cmd.Env, cmd.ExtraFiles = dir, []string{"PATH=" + os.Getenv("PATH"), "A=x\xffy"}, []*os.File{extra}
	cmd.Stdout, cmd.Stderr = &out, &errs
	f := startFamily(t, cmd)
	within(t, f.Done(), "the leader's exit")
	bare := exec.Command(cmd.Path, cmd.Args[1:]...)
	bare.Dir, bare.Env, bare.ExtraFiles = cmd.Dir, cmd.Env, cmd.ExtraFiles
	want, err := bare.Output()
	require.NoError(t, err)
	require.Equal(t, string(want), out.String())
	require.True(t, strings.HasPrefix(out.String(), "a b||x\xffy|"+dir+"\n0 1 "))
	require.Equal(t, "to stderr\n", errs.String())
	b, err := os.ReadFile(extra.Name())
	require.NoError(t, err)
	require.Equal(t, "extra\nextra\n", string(b))
}

// A survivor that holds standard output delays neither the exit nor what was written before it.
func TestFamilyOutputHeldOpen(t *testing.T) {
	var out bytes.Buffer
	cmd := sh("sleep 61 & echo last words; exit 3")
	cmd.Stdout, cmd.Stderr = &out, &out
	f := startFamily(t, cmd)
	within(t, f.Done(), "the leader's exit")
	require.Equal(t, "last words\n", out.String())
	eventually(t, f, "sleep 61") // it may have the shell's name until it has begun
	r := f.Stop(t.Context(), StopOptions{})
	require.Len(t, r.Orphans, 1)
	require.Equal(t, "sleep 61", r.Orphans[0].Command)
	require.Equal(t, FateKilled, r.Orphans[0].Fate)
}

// An escape is a script that starts "$@" so that it gets away from the shell that runs the script.
var escapes = []struct {
	name    string
	script  string
	escapes []Escape
}{
	{"background", `"$@" & wait`, nil},
	{"orphan", `("$@" &)`, []Escape{EscapeParent}},
	{"setsid", `setsid "$@" & wait`, []Escape{EscapeSession}},
	{"daemon", `(setsid "$@" &)`, []Escape{EscapeSession, EscapeParent}},
	{"cleared environment", `env -i "$@" & wait`, []Escape{EscapeEnvironment}},
	{
		"daemon without environment and files", `(env -i setsid "$@" </dev/null >/dev/null 2>&1 3>&- &)`,
		[]Escape{EscapeSession, EscapeParent, EscapeEnvironment},
	},
	{"own group", `bash -c "set -m; \"\$@\" & wait" bash "$@"`, []Escape{EscapeGroup}},
	{"nohup", `nohup "$@" >/dev/null 2>&1 & exit 0`, []Escape{EscapeParent}},
	{"wrapper", `sh -c 'sh -c "\"\$@\"; true" sh "$@"; true' sh "$@"; true`, nil},
	{"respawn", `trap '' TERM HUP; while :; do "$@"; done`, nil},
}

func TestFamilyKnowsEscapes(t *testing.T) {
	for _, row := range escapes {
		t.Run(row.name, func(t *testing.T) {
			f := startFamily(t, sh(row.script+"; sleep 62", "sleep", "61"))
			p := eventually(t, f, "sleep 61")
			require.Equal(t, row.escapes, p.Escapes)
			r := f.Stop(t.Context(), StopOptions{})
			require.NotEmpty(t, r.Orphans, "%v", r)
			within(t, f.Gone(), "the family's end")
			require.Empty(t, ownChildren(t))
		})
	}
}

// eventually returns the process with this command line when it has settled: it is what it escapes
// to.
func eventually(t *testing.T, f *Family, command string) (p Process) {
	t.Helper()
	var last []Escape
	require.Eventually(t, func() bool {
		list, err := f.Processes()
		require.NoError(t, err)
		i := slices.IndexFunc(list, func(p Process) bool { return p.Command == command })
		if i < 0 {
			return false
		}
		p = list[i]
		settled := last != nil && slices.Equal(last, append([]Escape{""}, p.Escapes...))
		last = append([]Escape{""}, p.Escapes...)
		return settled
	}, hang, 20*time.Millisecond)
	return p
}

// ownChildren lists the children of this process.
func ownChildren(t *testing.T) (pids []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/children")
	require.NoError(t, err)
	for _, file := range files {
		b, _ := os.ReadFile(file)
		pids = append(pids, strings.Fields(string(b))...)
	}
	return pids
}

func TestOOMRise(t *testing.T) {
	require.Equal(t, "the oom_kill counter of this cgroup rose from 3 to 4",
		oomRise(map[string]int{"of this cgroup": 3, "of this machine": 7},
			map[string]int{"of this cgroup": 4, "of this machine": 8}))
	require.Equal(t, "the oom_kill counter of this machine rose from 7 to 8",
		oomRise(map[string]int{"of this machine": 7}, map[string]int{"of this machine": 8}))
	require.Empty(t, oomRise(map[string]int{"of this cgroup": 3}, map[string]int{"of this cgroup": 3}))
}

// The family lives on when the thread that started it ends.
func TestFamilyOutlivesItsThread(t *testing.T) {
	tids := make(chan int, 1)
	families := make(chan *Family, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		tids <- unix.Gettid()
		f, err := Start(exec.Command("sleep", "61"))
		if err != nil {
			t.Error(err)
		}
		families <- f
	}()
	f := <-families
	require.NotNil(t, f)
	defer f.Stop(context.Background(), StopOptions{})
	tid := <-tids
	require.Eventually(t, func() bool {
		_, err := os.Stat("/proc/self/task/" + strconv.Itoa(tid))
		return tid == os.Getpid() || err != nil
	}, hang, time.Millisecond)
	list, err := f.Processes()
	require.NoError(t, err)
	require.Len(t, list, 1)
	_, ended := f.Exit()
	require.False(t, ended)
}

// Signals that are meant for the family don't end its supervisor.
func TestSupervisorKeepsOn(t *testing.T) {
	f := startFamily(t, exec.Command("sleep", "61"))
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		require.NoError(t, syscall.Kill(f.guard.process.Pid, sig))
	}
	require.NoError(t, f.Signal(syscall.SIGTERM))
	within(t, f.Done(), "the leader's exit")
	e, _ := f.Exit()
	require.Equal(t, "was killed by SIGTERM", e.String(), "the leader ignores none of them")
	require.False(t, f.Stop(t.Context(), StopOptions{}).Lost)
}

// Under nohup the leader ignores SIGHUP, as it does with os/exec.
func TestFamilyUnderNohup(t *testing.T) {
	for _, row := range []struct{ trap, want string }{{"trap '' HUP;", "survived"}, {"", "hung up"}} {
		if row.trap == "" && signal.Ignored(syscall.SIGHUP) {
			continue // this test runs under nohup itself
		}
		cmd := exec.Command("sh", "-c", row.trap+` exec "$0"`, os.Args[0])
		out := filepath.Join(t.TempDir(), "out")
		cmd.Env = append(os.Environ(), envHost+"=kill -HUP $$; echo survived >"+out, "PROC_TEST_TOKEN=1")
		require.NoError(t, cmd.Run())
		b, _ := os.ReadFile(out)
		if string(b) == "" {
			b = []byte("hung up\n")
		}
		require.Equal(t, row.want+"\n", string(b))
	}
}

// A stop goes by the book: signal, grace, SIGKILL; each step is in the report with its time.
func TestStopReport(t *testing.T) {
	f := startFamily(t, sh(`trap '' TERM; (setsid sleep 62 &); echo ready; sleep 61; sleep 63`))
	eventually(t, f, "sleep 61")
	eventually(t, f, "sleep 62")
	r := f.Stop(t.Context(), StopOptions{Grace: 20 * time.Millisecond, Settle: 10 * time.Millisecond})
	require.Equal(t, syscall.SIGTERM, r.Signal)
	require.GreaterOrEqual(t, r.Grace, 20*time.Millisecond)
	require.True(t, r.Killed)
	require.Equal(t, syscall.SIGKILL, r.Exit.Signal)
	require.Empty(t, r.Exit.OOM, "this process sent it")
	require.GreaterOrEqual(t, r.Settle, 10*time.Millisecond)
	require.Len(t, r.Orphans, 2)
	for _, o := range r.Orphans {
		require.Equal(t, FateKilled, o.Fate)
	}
	require.Regexp(t, `(?s)^SIGTERM: waited .*\nSIGKILL: waited .*\nthe leader was killed by SIGKILL\nprocess \d+ \(sleep 6\d\), .*outlived it: killed\n.*orphans: waited `, r.String())
	require.Equal(t, r, f.Stop(t.Context(), StopOptions{}), "a second call")
}

// A wrapper script does not hand on the signal that ends it; Forward does.
func TestStopForwards(t *testing.T) {
	f := startFamily(t, sh(`sh -c 'trap "exit 0" TERM; while :; do sleep 0.01; done' sh; true`))
	require.Eventually(t, func() bool { list, _ := f.Processes(); return len(list) == 3 }, hang, time.Millisecond)
	r := f.Stop(t.Context(), StopOptions{Grace: hang, Forward: true})
	require.NotEmpty(t, r.Orphans)
	for _, o := range r.Orphans {
		require.Contains(t, []Fate{FateSignaled, FateEnded}, o.Fate, "%v", o)
	}
	require.Equal(t, syscall.SIGTERM, r.Exit.Signal)
}

// A context that ends shortens the graces.
func TestStopFollowsItsContext(t *testing.T) {
	f := startFamily(t, sh(`trap '' TERM; while :; do sleep 61; done`))
	eventually(t, f, "sleep 61")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := f.Stop(ctx, StopOptions{Grace: time.Hour, Settle: time.Hour})
	require.True(t, r.Killed)
	require.Less(t, r.Grace, time.Hour)
}
