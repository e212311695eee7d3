package container_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"

	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/server"
	"github.com/enginetest/enginetest/server/container"
)

const long = 90 * time.Second

// image holds `enginetest serve` and nothing else.
const image = "localhost/enginetest-serve:test"

var skip string

// TestMain looks for a container engine: the one that testcontainers-go finds, or else podman,
// which it starts for the tests in folders of their own. It builds the image FROM scratch.
func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	_ = os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true") // its image is in a registry
	dir, err := os.MkdirTemp("", "ct")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	end := func() {}
	if !reachable() {
		if end, err = podman(dir); err != nil {
			skip = fmt.Sprintf("no container engine: the one of DOCKER_HOST does not answer, and %v", err)
		}
	}
	defer end()
	if skip == "" {
		if err := build(dir); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	return m.Run()
}

func reachable() bool {
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	c, err := client.New(client.FromEnv)
	if err != nil {
		return false
	}
	defer c.Close()
	_, err = c.Ping(ctx, client.PingOptions{})
	return err == nil
}

// podman starts podman's API service. It has a mount namespace of its own, where the control groups
// are version 2's alone: crun refuses the hybrid hierarchy that some machines have.
func podman(dir string) (end func(), err error) {
	for _, name := range []string{"podman", "crun", "unshare"} {
		if _, err := exec.LookPath(name); err != nil {
			return func() {}, err
		}
	}
	if os.Getuid() != 0 {
		return func() {}, fmt.Errorf("podman is started by root only")
	}
	conf := filepath.Join(dir, "containers.conf")
	text := "[containers]\ncgroups = \"disabled\"\ndefault_ulimits = [\"nofile=1000:1000\", \"nproc=1000:1000\"]\n" +
		"[engine]\nlock_type = \"file\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nruntime = \"crun\"\n"
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return func() {}, err
	}
	socket := filepath.Join(dir, "s")
	script := `mount --make-rprivate /
[ ! -d /sys/fs/cgroup/unified ] || mount --bind /sys/fs/cgroup/unified /sys/fs/cgroup
exec podman --root "$1/root" --runroot "$1/run" --tmpdir "$1/tmp" --storage-driver vfs system service --time 0 "unix://$1/s"`
	cmd := exec.Command("unshare", "-m", "sh", "-ec", script, "podman", dir)
	cmd.Env = append(os.Environ(), "CONTAINERS_CONF="+conf, "BUILDAH_ISOLATION=chroot")
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return func() {}, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return func() {}, err
	}
	dead := make(chan error, 1)
	go func() { dead <- cmd.Wait() }()
	end = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-dead
	}
	_ = os.Setenv("DOCKER_HOST", "unix://"+socket)
	for giveUp := time.Now().Add(long); !reachable(); time.Sleep(10 * time.Millisecond) {
		select {
		case err := <-dead:
			dead <- err
			said, _ := os.ReadFile(log.Name())
			return end, fmt.Errorf("podman's service ended: %w: %s", err, said)
		default:
		}
		if time.Now().After(giveUp) {
			return end, fmt.Errorf("podman's service does not answer")
		}
	}
	return end, nil
}

// build makes the image of docs/servers.md: a static program and nothing else.
func build(dir string) error {
	context := filepath.Join(dir, "image")
	if err := os.Mkdir(context, 0o700); err != nil {
		return err
	}
	compile := exec.Command("go", "build", "-trimpath", "-tags", "netgo,osusergo",
		"-ldflags", "-s -w -linkmode external -extldflags -static", "-o", context, "./cmd/enginetest")
	compile.Dir, compile.Env = "../..", append(os.Environ(), "CGO_ENABLED=1")
	if out, err := compile.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	file := "FROM scratch\nCOPY enginetest /enginetest\nENTRYPOINT [\"/enginetest\"]\nCMD [\"serve\", \"--host\", \"0.0.0.0\", \"--allowed-hosts\", \"*\"]\n"
	if err := os.WriteFile(filepath.Join(context, "Dockerfile"), []byte(file), 0o600); err != nil {
		return err
	}
	ctx, cancel := contextWithin()
	defer cancel()
	name, tag, _ := strings.Cut(image, ":")
	p, err := testcontainers.NewDockerProvider()
	if err != nil {
		return err
	}
	defer p.Close()
	_, err = p.BuildImage(ctx, &testcontainers.ContainerRequest{FromDockerfile: testcontainers.FromDockerfile{
		Context: context, Repo: name, Tag: tag, KeepImage: true, BuildLogWriter: io.Discard,
	}})
	return err
}

func contextWithin() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), long)
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := contextWithin()
	t.Cleanup(cancel)
	return ctx
}

// serve is `enginetest serve` in a container. A container engine without networks of its own, as
// podman without netavark, has the machine's.
func serve(t *testing.T, args ...string) container.Opener {
	t.Helper()
	if skip != "" {
		t.Skip(skip)
	}
	args = append([]string{"serve", "--device", "cpu", "--port", server.Port}, args...)
	return container.Image(image, args...).With(container.HostNetwork(), container.LogDir(t.ArtifactDir()),
		container.Client(server.Speaks(server.ProtocolEnginetest)))
}

func TestFixture(t *testing.T) {
	r := harness.Start(t, serve(t))
	outs := r.Generate(llm.Request{Prompt: "2+3=", Sampling: llm.SamplingParams{MaxTokens: 8}})
	if got := outs[0].Completions[0].Text; got != "5" {
		t.Errorf("2+3=%s", got)
	}
	report := r.Stop()
	t.Logf("\n%s", report)
	if err := report.Err(); err != nil {
		t.Error(err)
	}
}

func TestProcesses(t *testing.T) {
	s, err := serve(t).Start(within(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop(within(t))
	pids := s.PIDs()
	if len(pids) != 1 {
		t.Fatalf("the container's processes here: %v", pids)
	}
	if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pids[0])); !strings.Contains(string(line), "serve\x00--device") {
		t.Errorf("process %d is %q", pids[0], line)
	}
	for end := time.Now().Add(long); len(s.Log()) == 0; time.Sleep(time.Millisecond) { // podman's comes late
		if time.Now().After(end) {
			t.Fatal("no log")
		}
	}
	if err := s.Err(); err != nil {
		t.Error(err)
	}
	if err := s.Stop(within(t)).Err(); err != nil {
		t.Error(err)
	}
	if alive(pids[0]) {
		t.Error("its process lives")
	}
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestDeadAtStart(t *testing.T) {
	_, err := serve(t, "--no-such-flag").Start(within(t))
	contains(t, err, "exited with code 2", "before it was ready", "unknown flag: --no-such-flag")
}

func TestKilledWhileItServes(t *testing.T) {
	s, err := serve(t).Start(within(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop(within(t))
	if err := syscall.Kill(s.PIDs()[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_, err = s.Generate(within(t), llm.Request{Prompt: "2+3="})
	contains(t, err, "was killed by SIGKILL", "while it was to serve")
	contains(t, s.Stop(within(t)).Err(), "was killed by SIGKILL")
}

// A process that a tool put into the container from outside shares its files and not its PID
// namespace: the container's removal does not end it.
func TestSurvivorOfTheContainer(t *testing.T) {
	s, err := serve(t).Start(within(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop(within(t))
	tool := exec.Command("nsenter", "-t", fmt.Sprint(s.PIDs()[0]), "-m", "--", "/enginetest", "serve", "--device", "cpu", "--port", "0")
	out, err := tool.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := tool.Start(); err != nil {
		t.Skip(err)
	}
	ended := make(chan error, 1)
	defer func() { _ = tool.Process.Kill() }()
	if _, err := out.Read(make([]byte, 1)); err != nil { // it serves
		t.Fatal(err)
	}
	go func() { ended <- tool.Wait() }()
	if pids := s.PIDs(); len(pids) != 2 || pids[1] != tool.Process.Pid {
		t.Fatalf("the container's processes here: %v; the tool is %d", pids, tool.Process.Pid)
	}
	err = s.Stop(within(t)).Err()
	contains(t, err, fmt.Sprintf("outlived the container, killed: process %d (enginetest serve ", tool.Process.Pid))
	contains(t, <-ended, "signal: killed")
}

func contains(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%q is not in: %v", p, err)
		}
	}
}
