package engine

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/enginetest/enginetest/engine/internal/wire"
	"github.com/enginetest/enginetest/internal/proc"
)

// envCore tells a process that it is a core: "fd:inode" of its end of the link.
const envCore = "ENGINETEST_CORE"

// A core serves from here and does not return: before main, before any test, before the init of any
// package that imports this one.
func init() {
	env, ok := syscall.Getenv(envCore) // not os.Getenv: it would become an input of the test cache
	if !ok {
		return
	}
	_ = os.Unsetenv(envCore) // not for the children of this process
	var fd int
	var inode uint64
	if n, _ := fmt.Sscanf(env, "%d:%d", &fd, &inode); n != 2 || inode == 0 || proc.Inode(fd) != inode {
		return // inherited from the process that it was for
	}
	file := os.NewFile(uintptr(fd), "link")
	link, err := wire.FromFile(file)
	if err != nil {
		fmt.Fprintln(os.Stderr, "engine core: no link:", err)
		os.Exit(1)
	}
	_ = file.Close()
	serve(link)
}

// spawn starts a core: its process, its link, and the end of a pipe that its log comes out of.
func spawn(model string) (_ *proc.Family, _ *wire.Conn, log *os.File, err error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, nil, nil, err
	}
	link, theirs, err := wire.Pair()
	if err != nil {
		return nil, nil, nil, err
	}
	defer theirs.Close()
	log, out, err := os.Pipe()
	if err != nil {
		return nil, nil, nil, closing(err, link)
	}
	defer out.Close()
	// this very binary, whatever is at its path by now: both ends must have the same types
	cmd := exec.Command("/proc/self/exe", "engine core", model)
	// the arguments are for those who read a list of processes; no one parses them
	cmd.Args[0] = exe
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Env = append(coreEnv(os.Environ()), fmt.Sprintf("%s=3:%d", envCore, proc.Inode(int(theirs.Fd()))))
	p, err := proc.Start(cmd)
	if err != nil {
		return nil, nil, nil, closing(err, link, log)
	}
	return p, link, log, nil
}

func closing(err error, files ...interface{ Close() error }) error {
	for _, f := range files {
		_ = f.Close()
	}
	return err
}

// coreEnv is the environment of a core: under the race detector a process sleeps for a second at
// its end, unless it is told not to.
func coreEnv(env []string) []string {
	old, _ := syscall.Getenv("GORACE")
	if strings.Contains(old, "atexit_sleep_ms=") {
		return env
	}
	return append(env, "GORACE="+strings.TrimSpace(old+" atexit_sleep_ms=0"))
}
