package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/leakcheck"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/verdict"
)

func TestVerdictsOfATeardown(t *testing.T) {
	leak := &leakcheck.Error{Findings: []leakcheck.Finding{{
		Kind: leakcheck.KindGoroutine, Text: "goroutine llm.poll",
		Signature: "goroutine: llm.poll",
	}}}
	report := Report{Name: "llm", Took: time.Second, Steps: []Step{
		{Name: "shutdown", Took: 1, Budget: 2, Err: errors.New("connector still busy\nmore")},
		{Name: "goroutines", Err: fmt.Errorf("after 4s: %w", leak)},
		{Name: "processes", Err: errors.New("process 7 is still there")},
		{Name: "host", Skipped: "not on this system"},
		{Name: "references", Detail: "3 are gone"},
	}}
	err := &Error{Report: report, Repro: "go test ./llm"}
	got := verdict.Of(fmt.Errorf("wrapped: %w", err))
	require.Len(t, got, 3)
	assert.Equal(t, verdict.ClassEngine, got[0].Class)
	assert.Equal(t, "shutdown: connector still busy", got[0].Message)
	assert.Equal(t, verdict.ClassLeak, got[1].Class)
	assert.Equal(t, "leak: goroutine: llm.poll", got[1].Signature)
	assert.Equal(t, verdict.ClassLeak, got[2].Class)
	for _, v := range got {
		assert.Equal(t, "go test ./llm", v.Repro)
	}

	raw, jsonErr := json.Marshal(report)
	require.NoError(t, jsonErr)
	assert.JSONEq(t, `{"name":"llm","gone":false,"took_ns":1000000000,"steps":[
		{"name":"shutdown","took_ns":1,"budget_ns":2,"error":{"message":"connector still busy\nmore"}},
		{"name":"goroutines","took_ns":0,"error":{"message":"after 4s: leakcheck: goroutine llm.poll\n    to accept: leakcheck.Allow(\"goroutine: llm.poll\", \"reason\")",
			"verdicts":[{"class":"leak","signature":"leak: goroutine: llm.poll","source":"leakcheck","message":"goroutine llm.poll","resource":"goroutine",
			"accept":"leakcheck.Allow(\"goroutine: llm.poll\", \"reason\")"}]}},
		{"name":"processes","took_ns":0,"error":{"message":"process 7 is still there"}},
		{"name":"host","took_ns":0,"skipped":"not on this system"},
		{"name":"references","took_ns":0,"detail":"3 are gone"}]}`, string(raw))
}

// A verb's error has the class of its cause; what no one can tell has none.
func TestVerdictsOfAVerb(t *testing.T) {
	for _, c := range []struct {
		err  error
		want verdict.Class
	}{
		{fmt.Errorf("step 2: %w", llm.ErrEngineDead), verdict.ClassEngine},
		{fmt.Errorf("%w: %w", llm.ErrEngineDead, llm.ErrOutOfMemory), verdict.ClassCapacity},
		{fmt.Errorf("generate: %w", context.DeadlineExceeded), verdict.ClassTimeout},
		{verdict.With(verdict.ClassInfra, llm.ErrEngineDead), verdict.ClassInfra},
		{llm.ErrUnsupported, ""},
		{nil, ""},
	} {
		assert.Equal(t, c.want, verdict.Worst(verdictsOf(c.err)...), "%v", c.err)
	}
}
