// Command enginetest runs the bundled engine, looks at GPUs and measures.
//
//	enginetest generate   tokens from a checkpoint, one prompt or a batch
//	enginetest chat       an answer to a conversation
//	enginetest embed      vectors or classes of texts
//	enginetest serve      a checkpoint over OpenAI's API
//	enginetest gpus       the GPUs, their memory and who holds it
//	enginetest wait       until GPU memory is clear, for scripts and workflows
//	enginetest bench      speed, and what a whole life of the engine costs
//	enginetest run        go test, with failures by class, retries and shards
//	enginetest report     the same for results that are there already
//	enginetest bundle     tests for a machine without Go
//	enginetest audit      tests that prove less than they seem to
//
// It exits with 0 when done, 1 when it failed and 2 when it was used wrongly; wait and gpus have
// codes of their own, in their help. Errors go to standard error only.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/enginetest/enginetest/cmd/enginetest/internal/signals"
	"github.com/enginetest/enginetest/llm"
	"github.com/spf13/cobra"
)

// The exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signals.Context()
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main without the process: arguments in, exit code out.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:           "enginetest",
		Short:         "Run the bundled inference engine, look at GPUs, measure",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddCommand(generateCommand(), chatCommand(), embedCommand(), serveCommand(), gpusCommand(), waitCommand(), benchCommand(),
		runCommand(), reportCommand(), bundleCommand(), auditCommand())
	completeFlags(root)
	root.Version = version()
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usageError{suggest(cmd, err)} })
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	code := exitCode(cmd, err)
	if errors.As(err, &silent{}) {
		return code
	}
	fmt.Fprintln(stderr, "enginetest:", err)
	if code == exitUsage {
		fmt.Fprintf(stderr, "see '%s --help'\n", cmd.CommandPath())
	}
	return code
}

// usageError marks what the caller of the command got wrong.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// codeError carries the exit code of a command that has its own.
type codeError struct {
	error
	code int
}

func (e codeError) Unwrap() error { return e.error }

// exitCode maps an error to an exit code. Errors that cobra makes itself (an unknown command, a
// stray argument) come before a command ran.
func exitCode(cmd *cobra.Command, err error) int {
	var coded codeError
	var usage usageError
	var param *llm.ParamError
	switch {
	case errors.As(err, &coded):
		return coded.code
	case errors.As(err, &usage), errors.As(err, &param), !cmd.HasParent(), cmd.ValidateArgs(cmd.Flags().Args()) != nil:
		return exitUsage
	}
	return exitFailed
}

// noArguments refuses what is not a flag; hint says what was probably meant.
func noArguments(hint string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return fmt.Errorf("%s takes flags only, not %q%s", c.CommandPath(), args[0], hint)
	}
}
