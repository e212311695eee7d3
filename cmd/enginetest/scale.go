package main

import (
	"encoding/json"
	"fmt"

	"github.com/enginetest/enginetest/cmd/enginetest/internal/scale"
	"github.com/spf13/cobra"
)

func scaleCommand() *cobra.Command {
	var o scale.Options
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "scale",
		Short: "Measure how the cost of a proof and of a report grows",
		Long: `Measure how the cost of a proof and of a report grows with fixtures in a process, heap, processes of an engine, devices (simulated) and tests.
Each point is the least of several runs. The full sizes need 8 GB of memory, 5,000 processes and some minutes. docs/scale.md has results.

Exit codes: 0 no cost grows faster than its input, 1 one does or could not be measured, 2 wrong usage.`,
		Args: noArguments(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Repeat < 1 || o.Max < 0 {
				return usagef("--repeat must be at least 1 and --max at least 0")
			}
			list, err := scale.Run(cmd.Context(), o, func(what string) { fmt.Fprintln(cmd.ErrOrStderr(), "measuring", what) })
			if err != nil {
				return err
			}
			if len(list) == 0 {
				return usagef("--only %q and --max %d leave no curve", o.Only, o.Max)
			}
			if asJSON {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				err = e.Encode(list)
			}
			faster := 0
			for _, c := range list {
				if !asJSON {
					fmt.Fprintln(cmd.OutOrStdout(), c)
				}
				if c.Faster() {
					faster++
				}
			}
			if err == nil && faster > 0 {
				err = codeError{fmt.Errorf("%d of %d costs grow faster than their input", faster, len(list)), exitFailed}
			}
			return err
		},
	}
	cmd.Flags().StringVar(&o.Only, "only", "", "curves whose name contains `TEXT`")
	cmd.Flags().IntVar(&o.Repeat, "repeat", 3, "runs of each point")
	cmd.Flags().IntVar(&o.Max, "max", 0, "leave larger sizes out; 0 is none")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
