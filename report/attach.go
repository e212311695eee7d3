package report

import (
	"cmp"
	"strings"
	"time"

	"github.com/enginetest/enginetest/verdict"
)

// attach keeps what a fixture said about a test: a teardown's steps, a device's memory.
func (t *testRun) attach(a verdict.Attachment) {
	switch a.Kind {
	case verdict.KindTeardown:
		var raw teardownJSON
		if decode(a.Data, &raw) {
			t.Teardowns = append(t.Teardowns, raw.teardown())
		}
	case verdict.KindMemory:
		t.Memory = append(t.Memory, memoryOf(a.Data)...)
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

// memoryOf reads a gpuwait.Report; what is none has no devices.
func memoryOf(data []byte) (list []Memory) {
	var raw struct {
		Devices []struct {
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
		if d.Bounded {
			m.Target = d.Target
		}
		m.Peak = m.After
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
