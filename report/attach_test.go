package report_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/internal/testlog"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/report"
	"github.com/enginetest/enginetest/verdict"
)

// What a fixture attaches at its end becomes the test's curve, its faults and its bounds; a device
// that the engine never used is no curve.
func TestTeardownOfAnEngineOnGPUs(t *testing.T) {
	at := func(s int, used int64, family ...gpuwait.Holder) gpuwait.Usage {
		return gpuwait.Usage{
			At: time.Unix(1000+int64(s), 0), Family: family, Memory: gpuwait.Memory{Total: 80 << 30, Used: used},
		}
	}
	engine := gpuwait.Holder{PID: 7, Bytes: 3 << 30, Known: true}
	idle := gpuwait.DeviceAccount{
		Device: gpuwait.Device{UUID: "GPU-2"}, Verdict: gpuwait.VerdictReturned, Baseline: at(0, 5), Peak: at(1, 9), Before: at(1, 9), After: at(2, 5),
	}
	used := gpuwait.DeviceAccount{
		Device: gpuwait.Device{UUID: "GPU-1", Name: "H100"}, Verdict: gpuwait.VerdictHeld, Baseline: at(0, 1<<30),
		Peak: at(2, 4<<30, engine), Before: at(3, 3<<30, engine), After: at(4, 2<<30, engine),
		Holders: []gpuwait.Process{{Holder: gpuwait.Holder{PID: 7, Bytes: 1 << 30}}},
	}
	ended := harness.Report{
		Name:         "TestEngine",
		Steps:        []harness.Step{{Name: "device memory", Err: errors.New("1 GiB is still held")}},
		DeviceMemory: &gpuwait.AccountReport{Devices: []gpuwait.DeviceAccount{used, idle}},
		Faults:       []llm.FaultReport{{Fault: llm.Fault{Point: llm.FaultForward, Action: llm.ActError, After: 3}, Passes: 4, Fired: 1}},
	}
	test := attached(t, testlog.KindTeardown, ended)
	require.Len(t, test.Memory, 1)
	m := test.Memory[0]
	assert.Equal(t, "GPU-1 H100", m.Device)
	assert.False(t, m.Clear)
	assert.Equal(t, int64(4<<30), m.Peak)
	assert.Equal(t, int64(2<<30), m.After)
	assert.Equal(t, []report.Point{{0, 1 << 30}, {2 * time.Second, 4 << 30}, {3 * time.Second, 3 << 30}, {4 * time.Second, 2 << 30}}, m.Points)
	require.Len(t, m.Holders, 1)
	assert.Equal(t, 7, m.Holders[0].PID)
	assert.Equal(t, []verdict.Fault{{Name: "error at forward after 3 passes", Fired: 1, Passes: 4}}, test.Faults)
	require.Len(t, test.Teardowns, 1)
	assert.Equal(t, "1 GiB is still held", test.Teardowns[0].Steps[0].Error)
}

// Bounds and the report of a wait come as they were attached.
func TestAttachments(t *testing.T) {
	bound := verdict.Bound{Name: "growth", Value: 12, Max: 4096, Unit: "bytes"}
	assert.Equal(t, []verdict.Bound{bound}, attached(t, testlog.KindBound, []verdict.Bound{bound}).Bounds)
	wait := gpuwait.Report{Devices: []gpuwait.DeviceReport{{
		Device: gpuwait.Device{UUID: "GPU-1"}, Clear: true, Memory: gpuwait.Memory{Total: 100, Used: 5}, Bounded: true, Target: 10,
		History: []gpuwait.Point{{Used: 50}, {After: time.Second, Used: 5}},
	}}}
	m := attached(t, testlog.KindMemory, wait).Memory
	require.Len(t, m, 1)
	assert.Equal(t, int64(50), m[0].Peak)
	assert.Equal(t, int64(10), m[0].Target)
	assert.True(t, m[0].Clear)
	broken := attached(t, testlog.KindBound, "no list")
	assert.Empty(t, broken.Bounds)
}

// attached is a passed test with an attachment, as go test -json writes it and the page draws it.
func attached(t *testing.T, kind string, data any) report.Test {
	t.Helper()
	raw, err := json.Marshal(data)
	require.NoError(t, err)
	line, err := json.Marshal(testlog.Attachment{Kind: kind, Data: raw})
	require.NoError(t, err)
	output, err := json.Marshal("enginetest-attach: " + string(line) + "\n")
	require.NoError(t, err)
	var events strings.Builder
	for _, e := range []string{`"Action":"run"`, `"Action":"output","Output":` + string(output), `"Action":"pass"`} {
		fmt.Fprintf(&events, `{%s,"Package":"p","Test":"TestEngine"}`+"\n", e)
	}
	events.WriteString(`{"Action":"pass","Package":"p"}` + "\n")
	var c report.Collector
	require.NoError(t, c.Read(strings.NewReader(events.String()), report.Source{Name: "events"}))
	r := c.Report()
	require.Len(t, r.Tests, 1)
	var page bytes.Buffer
	require.NoError(t, r.WriteHTML(&page))
	for _, m := range r.Tests[0].Memory {
		assert.Contains(t, page.String(), "Memory of "+m.Device)
	}
	return r.Tests[0]
}
