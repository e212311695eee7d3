package leakcheck

import (
	"cmp"
	"fmt"
	"strings"
)

// Kind says what sort of thing was left behind.
type Kind string

// The kinds of findings.
const (
	KindReference     Kind = "reference"     // a tracked object that is still reachable
	KindGoroutine     Kind = "goroutine"     // a goroutine of a scope that still runs
	KindBuffer        Kind = "buffer"        // device memory in a ledger
	KindDescriptor    Kind = "descriptor"    // an open file, pipe, device
	KindSocket        Kind = "socket"        // an open socket; listening ones are named so
	KindMapping       Kind = "mapping"       // a mapped file, device or shared memory
	KindSharedMemory  Kind = "shared memory" // an entry of /dev/shm
	KindProcess       Kind = "process"       // a child or grandchild
	KindThread        Kind = "thread"        // a thread that C code started
	KindTemporaryFile Kind = "file"          // an entry of a watched folder
	KindMemory        Kind = "memory"        // growth over rounds
)

// Finding is one thing that outlived its owner.
type Finding struct {
	Kind Kind
	// Name identifies it: the name given to Track, "goroutine 34", "fd 7".
	Name string
	// Text is what was found in one line; Detail is indented under it: a retention path, a stack, a
	// table.
	Text   string
	Detail string
	// Path leads from a root to a tracked object, root first; nil when it is not known, and for
	// other kinds.
	Path []Step
	// Signature is the same for findings of the same kind, cause and type: the kind, then names
	// without addresses, ids and sizes. Allow matches it.
	Signature string
	// Reason is that of the Allow that accepts it, in [Error.Accepted].
	Reason string
	// Also names the other tracked objects that hang on the same path and would go with this one.
	Also []string
	// Inferred says that a goroutine carries no label of its scope, and is attributed to it because
	// nothing else ran meanwhile.
	Inferred bool
	// Note says why something is not known, or that one line of advice; empty when there is none.
	Note string

	accept string // the pattern that Allow takes for it in every run; "" for the signature itself
	cause  string // what findings about references are grouped by
}

// Error is what every check returns when something is left. Use errors.As to get at the findings.
type Error struct {
	Findings []Finding
	// Accepted are findings that an Allow pattern covers; an Error with nothing but these is never
	// returned.
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
		if accept := f.pattern(); accept != "" {
			fmt.Fprintf(&b, "\n    to accept: leakcheck.Allow(%q, \"reason\")", accept)
		}
	}
	return b.String()
}

func indent(s string) string { return "    " + strings.ReplaceAll(s, "\n", "\n    ") }

// pattern is what Allow takes for the finding.
func (f *Finding) pattern() string { return cmp.Or(f.accept, f.Signature) }
