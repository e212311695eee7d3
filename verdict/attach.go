package verdict

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// The kinds of attachments that a report reads.
const (
	KindTeardown = "teardown" // the steps of a fixture's teardown
	KindMemory   = "memory"   // device memory: a gpuwait.Report or a gpuwait.AccountReport
	KindBound    = "bound"    // measured values and their bounds: see Measure
	KindFault    = "fault"    // injected faults: see Faults
)

const attachPrefix = "enginetest-attach: "

// Attachment is a value that belongs to a test and is no failure.
type Attachment struct {
	Kind string          `json:"kind"`
	Data json.RawMessage `json:"data"`
}

// Attach adds data, as JSON, to the output of a test, under the same conditions as [Record].
func Attach(t interface{ Helper() }, kind string, data any) {
	if !Wanted() {
		return
	}
	defer ignorePanic()
	output, ok := t.(interface{ Output() io.Writer })
	if !ok {
		return
	}
	raw, err := json.Marshal(data)
	if err != nil {
		return // it is for the report; the test's own message has the text
	}
	line, _ := json.Marshal(Attachment{kind, raw})
	_, _ = fmt.Fprintln(output.Output(), attachPrefix+string(line))
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
