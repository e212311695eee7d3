package harness

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/verdict"
)

// Verdicts returns the verdicts of the failed steps. A step whose error has none is a leak, and the
// engine's failure when it is the shutdown.
func (e *Error) Verdicts() (list []verdict.Verdict) {
	for _, s := range e.Report.Steps {
		if s.Err == nil {
			continue
		}
		known := verdict.Of(s.Err)
		if known == nil {
			class := verdict.ClassLeak
			if s.Name == "shutdown" {
				class = verdict.ClassEngine
			}
			text := s.Name + ": " + firstLine(s.Err)
			known = []verdict.Verdict{{
				Class: class, Source: "harness", Message: text, Resource: s.Name, Took: s.Took,
				Budget: s.Budget,
			}}
		}
		for _, v := range known {
			if v.Repro == "" {
				v.Repro = e.Repro
			}
			list = append(list, v)
		}
	}
	return list
}

// verdictsOf returns the verdicts of an engine's error. The errors that engines share have no class
// of their own, because llm imports nothing.
func verdictsOf(err error) []verdict.Verdict {
	if known := verdict.Of(err); known != nil {
		return known
	}
	for _, known := range []struct {
		is    error
		class verdict.Class
	}{
		{llm.ErrOutOfMemory, verdict.ClassCapacity},
		{llm.ErrEngineDead, verdict.ClassEngine},
		{context.DeadlineExceeded, verdict.ClassTimeout},
	} {
		if errors.Is(err, known.is) {
			return []verdict.Verdict{{Class: known.class, Source: "harness", Message: firstLine(err)}}
		}
	}
	return nil
}

// MarshalJSON keeps the errors of the steps, their messages and verdicts, the readings of device
// memory and the injected faults.
func (r Report) MarshalJSON() ([]byte, error) {
	type step struct {
		Name    string          `json:"name"`
		Took    time.Duration   `json:"took_ns"`
		Budget  time.Duration   `json:"budget_ns,omitempty"`
		Detail  string          `json:"detail,omitempty"`
		Skipped string          `json:"skipped,omitempty"`
		Notes   []string        `json:"notes,omitempty"`
		Error   json.RawMessage `json:"error,omitempty"`
	}
	out := struct {
		Name  string        `json:"name"`
		Gone  bool          `json:"gone"`
		Took  time.Duration `json:"took_ns"`
		Steps []step        `json:"steps"`

		DeviceMemory *gpuwait.AccountReport `json:"device_memory,omitempty"`
		DeviceSlack  int64                  `json:"device_slack,omitempty"`
		Faults       []llm.FaultReport      `json:"faults,omitempty"`
	}{r.Name, r.Err() == nil, r.Took, []step{}, r.DeviceMemory, r.slack, r.Faults}
	for _, s := range r.Steps {
		j := step{
			Name: s.Name, Took: s.Took, Budget: s.Budget, Detail: strings.ToValidUTF8(s.Detail, "?"),
			Skipped: s.Skipped, Notes: s.Notes,
		}
		if s.Err != nil {
			j.Error = verdict.JSON(s.Err)
		}
		out.Steps = append(out.Steps, j)
	}
	return json.Marshal(out)
}
