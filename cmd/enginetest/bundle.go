package main

import (
	"fmt"

	"github.com/enginetest/enginetest/cmd/enginetest/internal/bundle"
	"github.com/spf13/cobra"
)

func bundleCommand() *cobra.Command {
	var o bundle.Options
	cmd := &cobra.Command{
		Use:   "bundle [flags] [PACKAGE…]",
		Short: "Build a folder that runs the tests of a module on a machine without Go",
		Long: `Build a folder with the test binaries of packages (default ./...), the files that the tests open, this command, and run.sh, which runs them on
a machine that has no Go, no sources and no network:

    enginetest bundle ./...
    scp dist/test-bundle.tar.gz gpu-machine: && ssh gpu-machine 'tar xzf test-bundle.tar.gz && test-bundle/run.sh logs'

It works in any module. What run.sh does and its options: run.sh --help. Binaries that are built with cgo need a C library at least as new as this
machine's; with --static they run anywhere, and what needs cgo (NVML) says so.`,
		RunE: func(cmd *cobra.Command, packages []string) error {
			o.Packages, o.Log = packages, cmd.ErrOrStderr()
			if err := bundle.Build(cmd.Context(), o); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\n%s.tar.gz\n", o.Out, o.Out)
			return err
		},
	}
	cmd.Flags().StringVarP(&o.Out, "out", "o", "dist/test-bundle",
		"the `FOLDER`, which is replaced; the archive lies beside it")
	cmd.Flags().BoolVar(&o.Static, "static", false, "build without cgo")
	cmd.Flags().StringArrayVar(&o.Flags, "build-flag", nil,
		"a further `FLAG` of go test -c, such as -tags=cuda; can be repeated")
	return cmd
}
