package leakcheck

import (
	"fmt"
	"regexp"
	"strings"
)

// Kind says what sort of thing was left behind.
type Kind string

// The kinds of findings.
const (
	Reference     Kind = "reference"     // a tracked object that is still reachable
	Goroutine     Kind = "goroutine"     // a goroutine of a scope that still runs
	Buffer        Kind = "buffer"        // device memory in a ledger
	Descriptor    Kind = "descriptor"    // an open file, pipe, device
	Socket        Kind = "socket"        // an open socket; listening ones are named so
	Mapping       Kind = "mapping"       // a mapped file, device or shared memory
	SharedMemory  Kind = "shared memory" // an entry of /dev/shm
	Process       Kind = "process"       // a child or grandchild
	TemporaryFile Kind = "file"          // an entry of a watched folder
	Memory        Kind = "memory"        // growth over rounds
)

// Finding is one thing that outlived its owner.
type Finding struct {
	Kind Kind
	// Name identifies it: the name given to Track, "goroutine 34", "fd 7".
	Name string
	// Text is what was found in one line; Detail is indented under it: a retention path, a stack, a table.
	Text   string
	Detail string
	// Path leads from a root to a tracked object, root first; nil when it is not known, and for other kinds.
	Path []Step
	// Signature is the same for findings with the same cause: names without addresses, ids and sizes. Allow matches it.
	Signature string
	// Also names the other tracked objects that hang on the same path and would go with this one.
	Also []string
	// Note says why something is not known, or that one line of advice; empty when there is none.
	Note string

	accept string // the shortest pattern that Allow takes for it
}

// Error is what every check returns when something is left. Use errors.As to get at the findings.
type Error struct {
	Findings []Finding
	// Accepted are findings that an Allow pattern covers; an Error with nothing but these is never returned.
	Accepted []Finding
}

// Error prints the findings, one block each.
func (e *Error) Error() string {
	var b strings.Builder
	for i, f := range e.Findings {
		if i > 0 {
			b.WriteString("\n")
		}
		b.WriteString("leakcheck: " + f.Text)
		for _, s := range []string{f.Detail, f.Note} {
			if s = strings.TrimRight(s, "\n"); s != "" {
				b.WriteString("\n" + indent(s))
			}
		}
		if f.accept != "" {
			fmt.Fprintf(&b, "\n    to accept: leakcheck.Allow(%q)", f.accept)
		}
	}
	return b.String()
}

func indent(s string) string { return "    " + strings.ReplaceAll(s, "\n", "\n    ") }

// newError sorts findings into those that count and those that a pattern accepts; nil when none counts.
func newError(fs []Finding, allow []string) error {
	e := &Error{}
	for _, f := range fs {
		if allowed(f, allow) {
			e.Accepted = append(e.Accepted, f)
		} else {
			e.Findings = append(e.Findings, f)
		}
	}
	if len(e.Findings) == 0 {
		return nil
	}
	return e
}

// allowed reports whether a pattern covers the finding: it occurs in the signature, "*" standing for any text.
func allowed(f Finding, patterns []string) bool {
	for _, p := range patterns {
		if p != "" && contains(f.Signature, p) {
			return true
		}
	}
	return false
}

// contains looks for a pattern in s from the start of a word to the end of one, so that "llm.cache" does not accept "llm.cacheOfWeights".
func contains(s, pattern string) bool {
	expr := strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, `.*`)
	if wordByte(pattern[0]) {
		expr = `\b` + expr
	}
	if wordByte(pattern[len(pattern)-1]) {
		expr += `\b`
	}
	ok, err := regexp.MatchString(expr, s)
	return ok && err == nil
}

func wordByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
}
