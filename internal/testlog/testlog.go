// Package testlog writes what a report reads into the output and the attributes of a test.
package testlog

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

// Env is the environment variable that decides whether anything is written: "1" or "0". Without
// it, tests write when a program reads their output (go test -json) and are silent otherwise.
const Env = "ENGINETEST_VERDICTS"

// Wanted reports whether a report is to be written.
func Wanted() bool {
	switch os.Getenv(Env) {
	case "1":
		return true
	case "0":
		return false
	}
	f := flag.Lookup("test.v")
	return f != nil && f.Value.String() == "test2json"
}

// Attr sets an attribute of a test, where that is wanted. White space in the key becomes "_", and
// the value ends with its first line.
func Attr(t interface{ Helper() }, key, value string) {
	if !Wanted() {
		return
	}
	defer ignorePanic()
	if attr, ok := t.(interface{ Attr(key, value string) }); ok {
		value, _, _ = strings.Cut(value, "\n")
		attr.Attr(strings.Join(strings.Fields(key), "_"), value)
	}
}

// Print writes a line to the output of a test, where that is wanted.
func Print(t interface{ Helper() }, line string) {
	if !Wanted() {
		return
	}
	defer ignorePanic()
	if output, ok := t.(interface{ Output() io.Writer }); ok {
		_, _ = fmt.Fprintln(output.Output(), line)
	}
}

// ignorePanic keeps a fake that embeds a nil testing.TB usable: what it lacks panics.
func ignorePanic() { _ = recover() }

// The kinds of attachments that a report reads.
const (
	KindTeardown = "teardown" // the steps of a fixture's teardown
	KindMemory   = "memory"   // device memory: a gpuwait.Report or a gpuwait.AccountReport
	KindBound    = "bound"    // measured values and their bounds: verdict.Measure
	KindFault    = "fault"    // injected faults: verdict.Faults
)

const attachPrefix = "enginetest-attach: "

// Attachment is a value that belongs to a test and is no failure.
type Attachment struct {
	Kind string          `json:"kind"`
	Data json.RawMessage `json:"data"`
}

// Attach adds data, as JSON, to the output of a test, where that is wanted.
func Attach(t interface{ Helper() }, kind string, data any) {
	raw, err := json.Marshal(data)
	if err != nil {
		return // it is for the report; the test's own message has the text
	}
	line, _ := json.Marshal(Attachment{kind, raw})
	Print(t, attachPrefix+string(line))
}

// ParseAttachment reads a line that Attach wrote.
func ParseAttachment(line string) (Attachment, bool) {
	text, ok := strings.CutPrefix(strings.TrimSpace(line), attachPrefix)
	if !ok {
		return Attachment{}, false
	}
	var a Attachment
	if err := json.Unmarshal([]byte(text), &a); err != nil || a.Kind == "" {
		return Attachment{}, false
	}
	return a, true
}
