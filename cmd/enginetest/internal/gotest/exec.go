package gotest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/enginetest/enginetest/internal/testlog"
)

// grace is how long a command may go on after it was asked to end.
const grace = 30 * time.Second

// Exec runs a command and passes each line of its standard output to line. It returns the exit
// code; the error says why the command could not be run or was ended by ctx.
func Exec(ctx context.Context, args []string, stderr io.Writer, line func(string)) (code int, err error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stderr = stderr
	cmd.Env = append(os.Environ(), testlog.Env+"=1")
	cmd.WaitDelay = grace
	ownGroup(cmd)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return -1, err
	}
	if err := cmd.Start(); err != nil {
		return -1, fmt.Errorf("cannot run %s: %w", args[0], err)
	}
	r := bufio.NewReaderSize(out, 1<<20)
	for {
		text, err := r.ReadString('\n')
		if text != "" {
			line(text)
		}
		if err != nil {
			break
		}
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil {
		return exit.ExitCode(), nil
	}
	if err != nil {
		return -1, fmt.Errorf("%s was ended: %w", args[0], errors.Join(context.Cause(ctx), err))
	}
	return 0, nil
}
