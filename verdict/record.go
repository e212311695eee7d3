package verdict

import (
	"encoding/json"
	"strings"

	"github.com/enginetest/enginetest/internal/testlog"
)

const prefix = "enginetest-verdict: "

// Record attaches verdicts to a test: the attributes verdict.class and verdict.signature, and one
// line of output each with all fields. It writes when a program reads the output (go test -json)
// and is silent otherwise; ENGINETEST_VERDICTS=1 or 0 decides instead. It neither fails nor skips
// the test. t is a testing.TB; one without Attr and Output, or whose own panic, records nothing.
func Record(t interface{ Helper() }, verdicts ...Verdict) {
	if !testlog.Wanted() {
		return
	}
	for _, v := range verdicts {
		v = v.complete()
		testlog.Attr(t, "verdict.class", string(v.Class))
		testlog.Attr(t, "verdict.signature", v.Signature)
		testlog.Print(t, v.Line())
	}
}

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
