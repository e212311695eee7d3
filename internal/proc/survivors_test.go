//go:build linux

package proc

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// envHost makes the test binary a host: a test process that owns one family, whose script it names.
const envHost = "PROC_TEST_HOST"

// envNoGroup denies a host control groups.
const envNoGroup = "PROC_TEST_NO_GROUP"

func TestMain(m *testing.M) {
	if script, ok := syscall.Getenv(envHost); ok {
		if _, none := syscall.Getenv(envNoGroup); none {
			home = func() string { return "" }
		}
		token, bare := strings.CutPrefix(os.Getenv("PROC_TEST_TOKEN"), "bare ")
		if bare {
			os.Exit(hostBare(script, token))
		}
		os.Exit(host(script, token))
	}
	os.Exit(m.Run())
}

// hostBare starts the command without a family, for the control of the tests below.
func hostBare(script, token string) int {
	cmd := sh(script, "sleep", token)
	if err := cmd.Start(); err != nil {
		return 1
	}
	fmt.Println("leader", cmd.Process.Pid, 0)
	_ = cmd.Wait()
	return 0
}

// host starts the family, says who leads it, stops it when its leader ends, and prints the orphans.
func host(script, token string) int {
	f, err := Start(sh(script, "sleep", token))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("leader", f.Leader(), f.guard.process.Pid, f.guard.group)
	<-f.Done()
	r := f.Stop(context.Background(), StopOptions{})
	for _, o := range r.Orphans {
		fmt.Println("orphan", o.Process, o.Fate)
	}
	if r.Lost {
		fmt.Println("lost")
	}
	return 0
}

// A scene is a host and all that comes from it. Its processes have the token in their command line
// or, where they have an environment, there.
type scene struct {
	token string
	cmd   *exec.Cmd
	out   *bytes.Buffer
	lines *os.File
}

func startScene(t *testing.T, script string, how ...string) *scene {
	t.Helper()
	s := &scene{token: fmt.Sprintf("86400.%d", rand.Int64()), out: new(bytes.Buffer)}
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	s.lines = out
	s.cmd = exec.Command(os.Args[0])
	s.cmd.Env = append(os.Environ(), envHost+"="+script, "PROC_TEST_TOKEN="+strings.Join(append(how, s.token), " "))
	s.cmd.Stdout, s.cmd.Stderr = out, out
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.killAll() // whatever the test found
		_ = out.Close()
	})
	return s
}

func (s *scene) printed() string {
	b, _ := os.ReadFile(s.lines.Name())
	return string(b)
}

// living lists the processes with the token, the host excepted.
func (s *scene) living() map[int]string {
	found := map[int]string{}
	for _, pid := range allPIDs() {
		dir := "/proc/" + strconv.Itoa(pid)
		line, _ := os.ReadFile(dir + "/cmdline")
		env, _ := os.ReadFile(dir + "/environ")
		if pid != s.cmd.Process.Pid && bytes.Contains(append(line, env...), []byte(s.token)) && alive(pid) {
			found[pid] = string(bytes.ReplaceAll(line, []byte{0}, []byte{' '}))
		}
	}
	return found
}

func (s *scene) leader() (leader, supervisor int) {
	_, _ = fmt.Sscanf(s.printed(), "leader %d %d", &leader, &supervisor)
	return leader, supervisor
}

// up waits for the leader and the server.
func (s *scene) up(t *testing.T) {
	t.Helper()
	require.Eventually(t, s.isUp, hang, 5*time.Millisecond)
}

// upOrOver is up for a script that may end, and its host with it, before the server can be seen.
func (s *scene) upOrOver(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return s.isUp() || !alive(s.cmd.Process.Pid) }, hang, 5*time.Millisecond)
}

func (s *scene) isUp() bool { return s.server() != 0 && strings.Contains(s.printed(), "leader") }

// server is the process that the script hides.
func (s *scene) server() int {
	for pid, line := range s.living() {
		if strings.HasPrefix(line, "sleep "+s.token) {
			return pid
		}
	}
	return 0
}

func (s *scene) kill(victim string) (found bool) {
	pid := s.cmd.Process.Pid
	switch victim {
	case "server":
		pid = s.server()
	case "launcher":
		pid, _ = s.leader()
	}
	return pid != 0 && syscall.Kill(pid, syscall.SIGKILL) == nil
}

func (s *scene) waitNone(t *testing.T) {
	t.Helper()
	var left map[int]string
	for end := time.Now().Add(hang); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if left = s.living(); len(left) == 0 {
			return
		}
	}
	t.Errorf("alive a minute after the end: %v\nthe host printed: %s", left, s.printed())
}

func (s *scene) killAll() {
	for end := time.Now().Add(hang); time.Now().Before(end); {
		left := s.living()
		if len(left) == 0 {
			return
		}
		for pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// The server, the launcher and the test process are killed at random moments, alone and together,
// in any order. 100 rounds per escape with ENGINETEST_LONG=1, else one.
func TestNoSurvivorOfAFamily(t *testing.T) {
	rounds := 1
	if os.Getenv("ENGINETEST_LONG") != "" {
		rounds = 100
	}
	for _, row := range escapes {
		t.Run(row.name, func(t *testing.T) {
			for range rounds {
				victims := []string{"server", "launcher", "test process"}
				rand.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
				victims = victims[:1+rand.IntN(len(victims))]
				s := startScene(t, row.script+"; sleep 62")
				if rand.IntN(2) == 0 { // at any moment of the start, or soon after it
					s.upOrOver(t)
				}
				time.Sleep(time.Duration(rand.Int64N(int64(30 * time.Millisecond))))
				ends := false // by itself, now that its leader has ended
				for _, v := range victims {
					ends = s.kill(v) && v == "launcher" || ends
				}
				if !ends {
					s.kill("test process")
				}
				_ = s.cmd.Wait()
				s.waitNone(t)
			}
		})
	}
}

// The control: without a family every escape survives the test process, and the tests here see it.
func TestSurvivorsAreSeen(t *testing.T) {
	for _, row := range escapes {
		s := startScene(t, row.script+"; sleep 62", "bare")
		s.up(t)
		server := s.server()
		s.kill("test process")
		_ = s.cmd.Wait()
		require.Contains(t, s.living(), server, row.name)
		s.killAll()
	}
}

// The launcher is killed while the test process lives: it names what escaped, and ends it.
func TestSurvivorsAreNamed(t *testing.T) {
	for _, row := range escapes {
		if row.name == "nohup" || row.name == "wrapper" || row.name == "respawn" {
			continue // for whose server the loss of the launcher is an escape of its own
		}
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := startScene(t, row.script+"; sleep 62")
			s.up(t)
			server := s.server()
			s.kill("launcher")
			require.NoError(t, s.cmd.Wait())
			require.Contains(t, s.printed(), fmt.Sprintf("orphan process %d (sleep %s), ", server, s.token))
			require.Contains(t, s.printed(), "killed\n")
			s.waitNone(t)
		})
	}
}

// Without its supervisor and without a control group a family is known by its mark alone, and the
// report says so.
func TestSupervisorIsKilled(t *testing.T) {
	t.Setenv(envNoGroup, "1")
	s := startScene(t, `(setsid "$@" &); sleep 62`)
	s.up(t)
	_, supervisor := s.leader()
	require.NoError(t, syscall.Kill(supervisor, syscall.SIGKILL))
	require.NoError(t, s.cmd.Wait())
	s.waitNone(t)
	require.Contains(t, s.printed(), "lost\n")
}

// Families whose processes all end in time have nothing to report. 1000 with ENGINETEST_LONG=1.
func TestCleanFamilies(t *testing.T) {
	rounds := 20
	if os.Getenv("ENGINETEST_LONG") != "" {
		rounds = 1000
	}
	for range rounds {
		f, err := Start(sh(`sleep 0.001 & (setsid true); env -i true; wait`))
		require.NoError(t, err)
		within(t, f.Done(), "the leader's exit")
		r := f.Stop(t.Context(), StopOptions{})
		require.Empty(t, r.Orphans)
		require.Empty(t, r.Left)
		require.False(t, r.Lost)
		require.Equal(t, "exited with code 0", r.Exit.String())
	}
}
