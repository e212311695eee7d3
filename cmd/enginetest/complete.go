package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/enginetest/enginetest/gpuwait"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagValues are the values of flags that have few, for the shell's completion.
var flagValues = map[string][]string{
	"shape":           {"tiny", "110m", "1b"},
	"dtype":           {"bf16", "f16", "f32"},
	"tensor-parallel": {"1", "2", "4", "8"},
	"ratio":           {"0.05", "0.1", "0.5"},
	"only":            {"fixtures", "heap", "family", "account", "report"},
}

// flagFiles are the flags whose value is a file with one of these endings.
var flagFiles = map[string][]string{
	"junit": {"xml"}, "html": {"html"}, "markdown": {"md"}, "messages": {"json"}, "batch": {"json", "jsonl"},
	"events": {"json", "jsonl"}, "tls-cert": {"pem", "crt"}, "tls-key": {"pem", "key"},
}

// flagFolders are the flags whose value is a folder.
var flagFolders = []string{"history", "model", "out"}

// completeFlags tells the shell what may follow the flags of a command and of its subcommands.
func completeFlags(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if complete := completion(f); complete != nil {
			// it fails only for a flag that is not there or has one already
			_ = cmd.RegisterFlagCompletionFunc(f.Name, complete)
		}
	})
	for _, sub := range cmd.Commands() {
		completeFlags(sub)
	}
}

// completion returns what completes a flag; nil for one whose value is free, or which has none.
func completion(f *pflag.Flag) cobra.CompletionFunc {
	endings, folder := flagFiles[f.Name], slices.Contains(flagFolders, f.Name)
	switch {
	case f.Value.Type() == "bool":
		return nil
	case f.Name == "json":
		endings = []string{"json"}
	case f.Name == "device":
		return completeDevices
	case f.Name == "batch" && f.Value.Type() != "string": // of bench: numbers
		return fixed([]string{"1", "8", "64"})
	}
	switch {
	case endings != nil:
		return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return endings, cobra.ShellCompDirectiveFilterFileExt
		}
	case folder:
		return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		}
	case flagValues[f.Name] != nil:
		return fixed(flagValues[f.Name])
	case f.Value.Type() == "int", f.Value.Type() == "float64", f.Value.Type() == "duration", f.Value.Type() == "int64":
		return fixed(nil)
	}
	return nil
}

func fixed(values []string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return values, cobra.ShellCompDirectiveNoFileComp
	}
}

// completionLimit is how long a person waits for the devices of a machine.
const completionLimit = 2 * time.Second

// completeDevices lists the CPU and the GPUs of this machine.
func completeDevices(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	values := []string{"cpu"}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionLimit)
	defer cancel()
	found := make(chan []string, 1)
	go func() { found <- gpuNames() }()
	select {
	case names := <-found:
		values = append(values, names...)
	case <-ctx.Done():
	}
	values = slices.DeleteFunc(values, func(v string) bool { return !strings.HasPrefix(v, prefix) })
	return values, cobra.ShellCompDirectiveNoFileComp
}

// gpuNames returns the names of the visible NVIDIA GPUs; none where they cannot be read.
func gpuNames() (names []string) {
	src, err := gpuwait.Open()
	if err != nil {
		return nil
	}
	defer src.Close()
	devices, err := src.Devices()
	if err != nil || len(devices) == 0 {
		return nil
	}
	names = []string{"cuda"}
	for _, d := range devices {
		if d.Vendor == gpuwait.NVIDIA {
			names = append(names, "cuda:"+d.UUID+"\t"+d.Name)
		}
	}
	return names
}
