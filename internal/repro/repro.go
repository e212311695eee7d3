// Package repro writes the command that runs one test of this program again.
package repro

import (
	"fmt"
	"regexp"
	"runtime/debug"
	"strings"
)

// Package is the import path of the package that this test binary tests; "" when that is not recorded.
func Package() string {
	if info, ok := debug.ReadBuildInfo(); ok && strings.HasSuffix(info.Path, ".test") {
		return strings.TrimSuffix(info.Path, ".test")
	}
	return ""
}

// Command is the go test command for one test, quoted for a shell, with the build flags that decide what the test does.
func Command(pkg, test string) string {
	parts := strings.Split(test, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	pattern := strings.ReplaceAll(strings.Join(parts, "/"), "'", `'\''`)
	return fmt.Sprintf("go test %s%s -run '%s' -count=1", flags(), pkg, pattern)
}

func flags() (s string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, f := range info.Settings {
		switch {
		case f.Key == "-race" && f.Value == "true":
			s += "-race "
		case f.Key == "-tags" && f.Value != "":
			s += "-tags=" + f.Value + " "
		}
	}
	return s
}
