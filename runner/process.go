package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is one of the engine's processes. Its start time tells it from a later one with the same id.
type process struct {
	pid     int
	started string // as /proc has it; "" where there is no /proc
}

// processes looks pids up while they live.
func processes(pids []int) (out []process) {
	for _, pid := range pids {
		p := process{pid: pid}
		if stat, ok := readStat(pid); ok {
			p.started = stat.started
		}
		out = append(out, p)
	}
	return out
}

// command is the process's command line now, "?" when it cannot be read: just after a fork it is not there yet, and after the end no more.
func (p process) command() string {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
	return cmp.Or(strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " ")), "?")
}

// alive reports whether the process still runs. A zombie does not: it holds nothing and only waits for its parent to ask.
func (p process) alive() bool {
	if stat, ok := readStat(p.pid); ok {
		return stat.state != "Z" && stat.state != "X" && (p.started == "" || stat.started == p.started)
	}
	if _, err := os.Stat("/proc/self/stat"); err == nil {
		return false
	}
	found, err := os.FindProcess(p.pid)
	return err == nil && found.Signal(syscall.Signal(0)) == nil
}

type procStat struct{ state, started string }

// readStat reads /proc/PID/stat: the command's name is in parentheses and may hold anything, the state is the first field after it and the
// start time the 20th (proc(5): fields 3 and 22).
func readStat(pid int) (procStat, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, false
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 {
		return procStat{}, false
	}
	return procStat{state: fields[0], started: fields[19]}, true
}

// reap waits until the engine's processes are gone; what survives its budget is named and killed.
func reap(ctx context.Context, engine []process) (string, error) {
	if len(engine) == 0 {
		return "the engine named no processes", nil
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		var alive []process
		for _, p := range engine {
			if p.alive() {
				alive = append(alive, p)
			}
		}
		if len(alive) == 0 {
			return fmt.Sprintf("%d process(es) gone", len(engine)), nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return "", killed(alive)
		}
	}
}

func killed(alive []process) error {
	var errs []error
	for _, p := range alive {
		how, command := "it was killed", p.command()
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
