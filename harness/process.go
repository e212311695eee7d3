package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/enginetest/enginetest/internal/backoff"
	"github.com/enginetest/enginetest/internal/procfs"
)

// process is one of the engine's processes. Its start time tells it from a later one with the same
// id.
type process struct {
	pid     int
	started int64 // as /proc has it; 0 where there is no /proc
}

// processes looks pids up while they live.
func processes(pids []int) (out []process) {
	for _, pid := range pids {
		p := process{pid: pid}
		if stat, ok := procfs.StatOf(pid); ok {
			p.started = stat.Start
		}
		out = append(out, p)
	}
	return out
}

// alive reports whether the process still runs. A zombie does not: it holds nothing and only waits
// for its parent to ask.
func (p process) alive() bool {
	if stat, ok := procfs.StatOf(p.pid); ok {
		return !stat.Dead() && (p.started == 0 || stat.Start == p.started)
	}
	if _, err := os.Stat("/proc/self/stat"); err == nil {
		return false
	}
	found, err := os.FindProcess(p.pid)
	return err == nil && found.Signal(syscall.Signal(0)) == nil
}

// reap waits until the engine's processes are gone; what survives its budget is named and killed.
func reap(ctx context.Context, engine []process) (string, error) {
	if len(engine) == 0 {
		return "the engine named no processes", nil
	}
	for looks := backoff.New(time.Millisecond, 50*time.Millisecond); ; {
		var alive []process
		for _, p := range engine {
			if p.alive() {
				alive = append(alive, p)
			}
		}
		if len(alive) == 0 {
			return fmt.Sprintf("%d process(es) gone", len(engine)), nil
		}
		if looks.Wait(ctx) != nil {
			return "", killed(alive)
		}
	}
}

func killed(alive []process) error {
	var errs []error
	for _, p := range alive {
		how, command := "it was killed", cmp.Or(procfs.CommandLine(p.pid), "?")
		found, err := os.FindProcess(p.pid)
		if err == nil {
			err = found.Kill()
		}
		if err != nil {
			how = "killing it failed: " + err.Error()
		}
		errs = append(errs, fmt.Errorf("process %d of the engine (%s) is still there; %s", p.pid, command, how))
	}
	return errors.Join(errs...)
}
