// Package repro writes the command that runs one test of this program again.
package repro

import (
	"flag"
	"fmt"
	"regexp"
	"runtime/debug"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Package is the import path of the package that this test binary tests; "" when that is not
// recorded.
func Package() string {
	if info, ok := debug.ReadBuildInfo(); ok && strings.HasSuffix(info.Path, ".test") {
		return strings.TrimSuffix(info.Path, ".test")
	}
	return ""
}

// Command returns the go test command that runs a test again, quoted for a shell, with the build
// flags that decide what the test does. test is what the test's Name method returns: of a test, a
// benchmark, a fuzz target, or a Ginkgo spec.
func Command(pkg, test string) string {
	return fmt.Sprintf("go test %s%s %s -count=1", flags(), pkg, selection(test))
}

// selection returns the flags that choose one test.
func selection(test string) string {
	switch target, _, _ := strings.Cut(test, "/"); {
	case isKind(test, "Benchmark"):
		return "-run '^$' -bench " + quote(pattern(test))
	case isKind(test, "Fuzz") && value("test.fuzz") != "": // the name of the input is made up: it is in no corpus yet
		return "-run '^$' -fuzz " + quote(pattern(target))
	case isKind(test, "Test"), isKind(test, "Fuzz"), isKind(test, "Example"), !underGinkgo():
		return "-run " + quote(pattern(test))
	}
	return "-ginkgo.focus=" + quote("^"+regexp.QuoteMeta(test)+"$")
}

// underGinkgo reports whether this test binary has Ginkgo's flags; tests replace it.
var underGinkgo = func() bool { return flag.Lookup("ginkgo.focus") != nil }

// isKind reports whether a name is that of a function of the testing package, or of a subtest of
// one: the text of a spec is not.
func isKind(test, prefix string) bool {
	top, _, _ := strings.Cut(test, "/")
	rest, ok := strings.CutPrefix(top, prefix)
	first, _ := utf8.DecodeRuneInString(rest)
	return ok && !unicode.IsLower(first) && !strings.Contains(top, " ")
}

// pattern matches a name and no other, level by level.
func pattern(test string) string {
	parts := strings.Split(test, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func value(name string) string {
	if f := flag.Lookup(name); f != nil {
		return f.Value.String()
	}
	return ""
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
