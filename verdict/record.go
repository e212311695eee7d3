package verdict

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

// Env is the environment variable that decides whether [Record] writes: "1" or "0". Without it,
// Record writes when a program reads the output (go test -json) and is silent otherwise.
const Env = "ENGINETEST_VERDICTS"

// The keys of the attributes that Record sets, for programs that read attributes and nothing else.
const (
	AttrClass     = "verdict.class"
	AttrSignature = "verdict.signature"
)

const prefix = "enginetest-verdict: "

// Wanted reports whether Record writes.
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

// Record attaches verdicts to a test: its attributes, and one line of output each with all fields.
// It neither fails nor skips the test. t is a testing.TB; one without Attr and Output, or whose own
// panic, records nothing.
func Record(t interface{ Helper() }, verdicts ...Verdict) {
	if !Wanted() {
		return
	}
	defer ignorePanic()
	attr, _ := t.(interface{ Attr(key, value string) })
	output, _ := t.(interface{ Output() io.Writer })
	for _, v := range verdicts {
		v = v.complete()
		if attr != nil {
			attr.Attr(AttrClass, string(v.Class))
			attr.Attr(AttrSignature, firstLine(v.Signature))
		}
		if output != nil {
			_, _ = fmt.Fprintln(output.Output(), v.Line())
		}
	}
}

// Attr sets an attribute of a test, under the same conditions as [Record]. White space in the key
// becomes "_", and the value ends with its first line.
func Attr(t interface{ Helper() }, key, value string) {
	if !Wanted() {
		return
	}
	defer ignorePanic()
	if attr, ok := t.(interface{ Attr(key, value string) }); ok {
		attr.Attr(strings.Join(strings.Fields(key), "_"), firstLine(value))
	}
}

// ignorePanic keeps a fake that embeds a nil testing.TB usable: what it lacks panics.
func ignorePanic() { _ = recover() }

// Skip records v and skips the test with its message. A test that cannot run on this machine says
// so with [ClassCapacity], so that a report can count what was not tested.
func Skip(t interface {
	Helper()
	Skip(args ...any)
}, v Verdict,
) {
	t.Helper()
	Record(t, v)
	t.Skip(v.Message)
}

// Line formats v as the one line that [Parse] reads.
func (v Verdict) Line() string {
	out, err := json.Marshal(v)
	if err != nil { // Details is not JSON
		v.Details = nil
		out, _ = json.Marshal(v)
	}
	return prefix + string(out)
}

// Parse reads a line of a test's output. It returns false for a line that is none of Record's;
// indentation is skipped.
func Parse(line string) (Verdict, bool) {
	text, ok := strings.CutPrefix(strings.TrimSpace(line), prefix)
	if !ok {
		return Verdict{}, false
	}
	var v Verdict
	if err := json.Unmarshal([]byte(text), &v); err != nil || !v.Class.Known() {
		return Verdict{}, false
	}
	return v.complete(), true
}
