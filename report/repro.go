package report

import (
	"regexp"
	"slices"
	"strings"

	"github.com/enginetest/enginetest/verdict"
)

// repro returns the command that runs the test alone: the one that the fixture recorded, else one
// with the flags of the command that was run.
func (t *Test) repro(command []string) string {
	if i := slices.IndexFunc(t.Verdicts, func(v verdict.Verdict) bool { return v.Repro != "" }); i >= 0 {
		return t.Verdicts[i].Repro
	}
	words := append([]string{"go", "test"}, buildFlags(command)...)
	words = append(words, t.Package)
	if t.Name != "" {
		words = append(words, selectTest(t.Name)...)
	}
	words = append(words, "-count=1")
	for i, w := range words {
		words[i] = quote(w)
	}
	return strings.Join(words, " ")
}

// selectTest returns the flags that select one test, example, benchmark or fuzz target.
func selectTest(name string) []string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	pattern := strings.Join(parts, "/")
	if strings.HasPrefix(name, "Benchmark") {
		return []string{"-run=^$", "-bench=" + pattern}
	}
	return []string{"-run=" + pattern}
}

// buildFlags returns the flags of a go test command that change what is built.
func buildFlags(command []string) (flags []string) {
	for i := 0; i < len(command); i++ {
		name, _, joined := strings.Cut(strings.TrimPrefix(command[i], "-"), "=")
		name = strings.TrimPrefix(name, "-")
		switch {
		case !strings.HasPrefix(command[i], "-"):
		case command[i] == "-args" || command[i] == "--args":
			return flags
		case name == "race" || name == "msan" || name == "asan" || name == "short":
			flags = append(flags, command[i])
		case slices.Contains([]string{"tags", "gcflags", "ldflags", "mod", "modfile", "overlay"}, name):
			flags = append(flags, command[i])
			if !joined && i+1 < len(command) {
				i++
				flags = append(flags, command[i])
			}
		}
	}
	return flags
}

var plain = regexp.MustCompile(`^[\w@%+=:,./-]+$`)

// quote quotes a word for a shell when it needs it.
func quote(word string) string {
	if plain.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
