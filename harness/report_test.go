package harness

import (
	"errors"
	"testing"
	"time"

	"gotest.tools/v3/golden"
)

// TestMessages pins what people read. After a change on purpose: go test ./runner -run Messages
// -update
func TestMessages(t *testing.T) {
	report := Report{Name: "TestGenerate", Took: 1234567 * time.Microsecond, Steps: []Step{
		{Name: "shutdown", Took: 12345 * time.Microsecond, Budget: 40 * time.Second, Detail: "returned no error"},
		{
			Name: "goroutines", Took: 1002 * time.Millisecond, Budget: 4 * time.Second,
			Err: errors.New("leakcheck: one goroutine\n    llm.poll llm/engine.go:88"),
		},
		{Name: "device memory", Budget: 40 * time.Second, Skipped: "no GPU was found"},
	}}
	golden.Assert(t, report.String(), "report.golden")
	golden.Assert(t, (&Error{Report: report, Repro: "go test ./llm -run '^TestGenerate$' -count=1"}).Error(),
		"error.golden")
	report.Steps = report.Steps[:1]
	golden.Assert(t, report.String(), "gone.golden")
}
