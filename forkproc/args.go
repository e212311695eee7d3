package forkproc

import (
	"flag"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// passThrough are the test flags that mean the same in the child. Every other test flag is set here
// or is not the child's business: profiles would overwrite the parent's, -count, -bench, -fuzz,
// -list, -shuffle and -failfast belong to the parent.
var passThrough = map[string]bool{
	"test.paniconexit0": true, "test.short": true, "test.fullpath": true, "test.skip": true,
	"test.artifacts": true, "test.outputdir": true, "test.gocoverdir": true,
}

// childArgs builds the command line of a child that runs test. given is the parent's, without its
// program name.
func childArgs(given []string, test string, timeout time.Duration, testlog string, extra []string) []string {
	kept, positional, run, cpu := splitArgs(given)
	args := []string{
		"-test.run=" + runPattern(run, test),
		"-test.v=test2json",
		"-test.count=1",
		"-test.parallel=1",
		"-test.timeout=" + timeout.String(),
	}
	if testlog != "" {
		args = append(args, "-test.testlogfile="+testlog)
	}
	if cpu != "" {
		args = append(args, "-test.cpu="+strconv.Itoa(runtime.GOMAXPROCS(0))) // of the list, the one that runs now
	}
	args = append(args, kept...)
	args = append(args, extra...)
	return append(args, positional...)
}

// splitArgs reads the command line as package flag does: kept are the flags of the program and the
// test flags that pass through.
func splitArgs(args []string) (kept, positional []string, run, cpu string) {
	for len(args) > 0 {
		arg := args[0]
		if len(arg) < 2 || arg[0] != '-' || arg == "--" {
			break
		}
		args = args[1:]
		name, value, hasValue := strings.Cut(strings.TrimPrefix(arg[1:], "-"), "=")
		spelled := []string{arg}
		if !hasValue && !isBool(name) && len(args) > 0 {
			value, args, spelled = args[0], args[1:], append(spelled, args[0])
		}
		if !strings.HasPrefix(name, "test.") || passThrough[name] {
			kept = append(kept, spelled...)
		}
		switch name {
		case "test.run":
			run = value
		case "test.cpu":
			cpu = value
		}
	}
	return kept, args, run, cpu
}

func isBool(name string) bool {
	f := flag.Lookup(name)
	if f == nil {
		return false
	}
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// runPattern selects exactly test, and below it what the parent's pattern selects.
func runPattern(given, test string) string {
	parts := strings.Split(test, "/")
	quoted := make([]string, len(parts))
	for i, p := range parts {
		quoted[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	exact := strings.Join(quoted, "/")
	var patterns []string
	for _, alternative := range splitPattern(given) {
		if !selects(alternative, parts) {
			continue
		}
		if len(alternative) <= len(parts) {
			return exact // all that is below test
		}
		patterns = append(patterns, exact+"/"+strings.Join(alternative[len(parts):], "/"))
	}
	if len(patterns) == 0 {
		return exact
	}
	return strings.Join(patterns, "|")
}

func selects(pattern, name []string) bool {
	for i, part := range name {
		if i >= len(pattern) {
			break
		}
		if re, err := regexp.Compile(pattern[i]); err != nil || !re.MatchString(part) {
			return false
		}
	}
	return true
}

// splitPattern cuts a -run pattern at the bars and slashes outside of brackets, as package testing
// does.
func splitPattern(s string) (alternatives [][]string) {
	var parts []string
	depth, class, start := 0, 0, 0
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\':
			i++
		case c == '[':
			class++
		case c == ']':
			class = max(class-1, 0)
		case class > 0:
		case c == '(':
			depth++
		case c == ')':
			depth--
		case depth == 0 && c == '/':
			parts, start = append(parts, s[start:i]), i+1
		case depth == 0 && c == '|':
			alternatives, parts, start = append(alternatives, append(parts, s[start:i])), nil, i+1
		}
	}
	return append(alternatives, append(parts, s[start:]))
}
