//go:build !linux

package proc

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Unseen says what a family may hide on this system.
func Unseen() string {
	return "on " + runtime.GOOS + " a family is a process group: what leaves the group is not found, and nothing ends the family when this process is killed"
}

// A guard is the leader itself: there is no supervisor.
type guard struct{ cmd *exec.Cmd }

func (g *guard) start(f *Family, cmd *exec.Cmd, files []*os.File) error {
	g.cmd = &exec.Cmd{
		Path: cmd.Path, Args: cmd.Args, Dir: cmd.Dir, Env: append(cmd.Environ(), envID+"="+f.id),
		Stdin: files[0], Stdout: files[1], Stderr: files[2], ExtraFiles: files[3:], SysProcAttr: cmd.SysProcAttr,
	}
	if cmd.SysProcAttr == nil || !setsid(cmd.SysProcAttr) {
		ownGroup(g.cmd)
	}
	if err := g.cmd.Start(); err != nil {
		return err
	}
	f.leader = g.cmd.Process.Pid
	return nil
}

// listen waits for the leader, then for its group.
func (g *guard) listen(f *Family) {
	defer f.release()
	_ = g.cmd.Wait()
	e := Exit{Code: g.cmd.ProcessState.ExitCode()}
	if ws, ok := g.cmd.ProcessState.Sys().(syscall.WaitStatus); ok {
		e = exitOf(ws)
	}
	f.exited(e)
	for groupAlive(f.leader) {
		time.Sleep(5 * time.Millisecond)
	}
	close(f.gone)
}

func (g *guard) signal(_ *Family, sig syscall.Signal) error { return g.cmd.Process.Signal(sig) }

func (g *guard) signalAll(f *Family, sig syscall.Signal) error { return signalGroup(f.leader, sig) }

func (g *guard) held() bool { return false }

func (g *guard) kill(f *Family) { killGroup(f.leader) }

// Processes lists the leader while it lives: this system does not show the others.
func (f *Family) Processes() ([]Process, error) {
	select {
	case <-f.done:
		return nil, nil
	default:
		return []Process{{PID: f.leader, Parent: os.Getpid(), Command: f.name}}, nil
	}
}

func pending(*os.File) int { return 0 }
