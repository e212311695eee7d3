package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/enginetest/enginetest/internal/testlog"
	"github.com/enginetest/enginetest/verdict"
)

// attach keeps what a fixture said about a test: a teardown's steps, a device's memory.
func (t *testRun) attach(a testlog.Attachment) {
	switch a.Kind {
	case testlog.KindTeardown:
		var raw teardownJSON
		if decode(a.Data, &raw) {
			t.Teardowns = append(t.Teardowns, raw.teardown())
			t.Memory = append(t.Memory, memoryOf(raw.DeviceMemory)...)
			t.Faults = append(t.Faults, raw.faults()...)
			t.Bounds = append(t.Bounds, raw.bounds()...)
		}
	case testlog.KindMemory:
		t.Memory = append(t.Memory, memoryOf(a.Data)...)
	case testlog.KindBound:
		var bounds []verdict.Bound
		if decode(a.Data, &bounds) {
			t.Bounds = append(t.Bounds, bounds...)
		}
	case testlog.KindFault:
		var faults []verdict.Fault
		if decode(a.Data, &faults) {
			t.Faults = append(t.Faults, faults...)
		}
	}
}

// teardownJSON is a fixture's report as it marshals itself.
type teardownJSON struct {
	Name  string        `json:"name"`
	Took  time.Duration `json:"took_ns"`
	Steps []struct {
		Name    string        `json:"name"`
		Took    time.Duration `json:"took_ns"`
		Budget  time.Duration `json:"budget_ns"`
		Detail  string        `json:"detail"`
		Skipped string        `json:"skipped"`
		Error   *struct {
			Message string `json:"message"`
		} `json:"error"`
	} `json:"steps"`
	DeviceMemory json.RawMessage `json:"device_memory"`
	DeviceSlack  int64           `json:"device_slack"`
	Faults       []struct {
		Fault struct {
			Point, Action string
			After         int
		}
		Passes, Fired int
	} `json:"faults"`
}

// bounds compares what may stay on the devices with what the engine held there: when that is more
// than it ever held, the check cannot fail.
func (j teardownJSON) bounds() []verdict.Bound {
	var held int64
	for _, m := range memoryOf(j.DeviceMemory) {
		if len(m.Points) > 0 {
			held = max(held, m.Peak-m.Points[0].Used)
		}
	}
	if held <= 0 || j.DeviceSlack <= 0 {
		return nil
	}
	return []verdict.Bound{{
		Name: "device memory that may stay, beside what the engine held", Value: float64(held),
		Max: float64(j.DeviceSlack), Unit: "bytes",
	}}
}

func (j teardownJSON) faults() (list []verdict.Fault) {
	for _, f := range j.Faults {
		name := fmt.Sprintf("%s at %s after %d passes", f.Fault.Action, f.Fault.Point, f.Fault.After)
		list = append(list, verdict.Fault{Name: name, Fired: f.Fired, Passes: f.Passes})
	}
	return list
}

func (j teardownJSON) teardown() Teardown {
	t := Teardown{Name: j.Name, Took: j.Took}
	for _, s := range j.Steps {
		step := TeardownStep{Name: s.Name, Took: s.Took, Budget: s.Budget, Detail: s.Detail, Skipped: s.Skipped}
		if s.Error != nil {
			step.Error = s.Error.Message
		}
		t.Steps = append(t.Steps, step)
	}
	return t
}

// memoryOf reads a gpuwait.Report or a gpuwait.AccountReport; what is neither has no devices.
func memoryOf(data []byte) (list []Memory) {
	var raw struct {
		Devices []struct {
			accountJSON
			Device struct {
				UUID string `json:"uuid"`
				Name string `json:"name"`
			} `json:"device"`
			Clear  bool `json:"clear"`
			Memory struct {
				Total int64 `json:"total"`
				Used  int64 `json:"used"`
			} `json:"memory"`
			Bounded bool  `json:"bounded"`
			Target  int64 `json:"target"`
			History []struct {
				After time.Duration `json:"after"`
				Used  int64         `json:"used"`
			} `json:"history"`
			Holders []struct {
				PID     int    `json:"pid"`
				Bytes   int64  `json:"bytes"`
				Command string `json:"command"`
				Test    string `json:"test"`
				State   string `json:"state"`
			} `json:"holders"`
		} `json:"devices"`
	}
	if !decode(data, &raw) {
		return nil
	}
	for _, d := range raw.Devices {
		m := Memory{
			Device: strings.TrimSpace(d.Device.UUID + " " + d.Device.Name),
			Total:  d.Memory.Total, After: d.Memory.Used, Clear: d.Clear,
		}
		if d.Verdict != "" && !d.used() {
			continue
		}
		if d.Verdict != "" {
			d.fill(&m)
		}
		if d.Bounded {
			m.Target = d.Target
		}
		m.Peak = max(m.Peak, m.After)
		for _, p := range d.History {
			m.Points = append(m.Points, Point{p.After, p.Used})
			m.Peak = max(m.Peak, p.Used)
		}
		for _, h := range d.Holders {
			m.Holders = append(m.Holders, Holder{
				PID: h.PID, Bytes: h.Bytes, Command: h.Command,
				Note: cmp.Or(h.Test, h.State),
			})
		}
		list = append(list, m)
	}
	return list
}

// accountJSON is what a gpuwait.AccountReport says of a device: readings before the engine, at its
// peak, before its teardown and after.
type accountJSON struct {
	Verdict  string    `json:"verdict"`
	Baseline usageJSON `json:"baseline"`
	Peak     usageJSON `json:"peak"`
	Before   usageJSON `json:"before"`
	After    usageJSON `json:"after"`
}

type usageJSON struct {
	At        time.Time         `json:"at"`
	Family    []json.RawMessage `json:"family"`
	GPUMapped bool              `json:"gpu_mapped"`
	Memory    struct {
		Total int64 `json:"total"`
		Used  int64 `json:"used"`
	} `json:"memory"`
}

// used reports whether the engine may have had memory on the device, or still has.
func (a accountJSON) used() bool {
	readings := []usageJSON{a.Peak, a.Before, a.After}
	return a.Verdict != "returned" || slices.ContainsFunc(readings, func(u usageJSON) bool {
		return u.GPUMapped || len(u.Family) > 0
	})
}

func (a accountJSON) fill(m *Memory) {
	m.Total, m.After, m.Clear = a.After.Memory.Total, a.After.Memory.Used, a.Verdict == "returned"
	readings := []usageJSON{a.Baseline, a.Peak, a.Before, a.After}
	slices.SortStableFunc(readings, func(x, y usageJSON) int { return x.At.Compare(y.At) })
	for i, r := range readings {
		m.Peak = max(m.Peak, r.Memory.Used)
		if i == 0 || r.At.After(readings[i-1].At) {
			m.Points = append(m.Points, Point{r.At.Sub(readings[0].At), r.Memory.Used})
		}
	}
}
