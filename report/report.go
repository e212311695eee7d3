// Package report reads the results of test runs and says what failed, of which class, and whether
// it failed before.
//
// [Collector] takes "go test -json", the text of "go test -v", logs of a bundle and JUnit files of
// others, as many as there are shards, and returns one [Report]. A report is written as text, JSON
// (report.schema.json), JUnit XML, Markdown and annotations for GitHub, and as one HTML page that
// needs no network.
package report

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/enginetest/enginetest/verdict"
)

// SchemaVersion names the form of the JSON; it changes when a field changes its meaning.
const SchemaVersion = "enginetest.report/1"

// Status is how a test ended.
type Status string

// The statuses.
const (
	StatusPass       Status = "pass"
	StatusFail       Status = "fail"
	StatusSkip       Status = "skip"
	StatusUnfinished Status = "unfinished" // it began and never ended: the process died or was killed
)

// Failed reports whether the status makes a run fail.
func (s Status) Failed() bool { return s == StatusFail || s == StatusUnfinished }

// Result is the answer of a whole run.
type Result string

// The results.
const (
	ResultPass       Result = "pass"
	ResultFail       Result = "fail"
	ResultIncomplete Result = "incomplete" // nothing failed, and not everything was tested: see [Policy]
)

// Report is what one run or several merged runs found.
type Report struct {
	Schema   string        `json:"schema"`
	Name     string        `json:"name,omitempty"`
	Commit   string        `json:"commit,omitempty"` // the code under test
	Command  []string      `json:"command,omitempty"`
	Started  time.Time     `json:"started,omitzero"`
	Elapsed  time.Duration `json:"elapsed_ns"` // by the clock, from the first event to the last
	Result   Result        `json:"result"`
	Why      []string      `json:"why,omitempty"` // what made the result what it is
	Counts   Counts        `json:"counts"`
	Shards   []Shard       `json:"shards,omitempty"` // that ran, when the run was split
	Inputs   []Input       `json:"inputs"`
	Packages []Package     `json:"packages"`
	Tests    []Test        `json:"tests"`
}

// Input is one stream or file that was read.
type Input struct {
	Name     string `json:"name"`
	Format   Format `json:"format"`
	Shard    string `json:"shard,omitempty"`
	Tests    int    `json:"tests"`
	Problems int    `json:"problems,omitempty"` // lines that could not be read
	Problem  string `json:"problem,omitempty"`  // the first of them, or why the input ended early
	Broken   bool   `json:"broken,omitempty"`   // it is empty or ended early: results may be missing
}

// Shard is one part of a run over several machines.
type Shard struct {
	Index int    `json:"index"` // from 1
	Of    int    `json:"of"`
	Plan  string `json:"plan"` // of the whole run: shards with different plans may have lost tests
}

// String formats "2/5".
func (s Shard) String() string { return fmt.Sprintf("%d/%d", s.Index, s.Of) }

// Package is one tested package.
type Package struct {
	Name    string        `json:"name"`
	Status  Status        `json:"status"`
	Elapsed time.Duration `json:"elapsed_ns"`
	Shard   string        `json:"shard,omitempty"`
	Cached  bool          `json:"cached,omitempty"`
	Output  string        `json:"output,omitempty"` // outside of any test, when it failed

	ended bool
}

// Test is one test, subtest, example or benchmark.
type Test struct {
	Package string        `json:"package"`
	Name    string        `json:"name"` // "" for what failed outside of any test: a build, TestMain, an exit
	Status  Status        `json:"status"`
	Started time.Time     `json:"started,omitzero"`
	Elapsed time.Duration `json:"elapsed_ns"`
	Shard   string        `json:"shard,omitempty"`

	Class     verdict.Class     `json:"class,omitempty"` // of a failure, or of a skip for lack of capacity
	Signature string            `json:"signature,omitempty"`
	Evidence  string            `json:"evidence,omitempty"` // what the class rests on
	Message   string            `json:"message,omitempty"`
	Verdicts  []verdict.Verdict `json:"verdicts,omitempty"`
	Parent    bool              `json:"parent,omitempty"` // it failed because a subtest did; not counted again

	Attributes map[string]string `json:"attributes,omitempty"`
	Teardowns  []Teardown        `json:"teardowns,omitempty"`
	Memory     []Memory          `json:"memory,omitempty"`
	Bounds     []verdict.Bound   `json:"bounds,omitempty"` // what was measured, also when it passed
	Faults     []verdict.Fault   `json:"faults,omitempty"` // that the test injected
	Output     string            `json:"output,omitempty"` // of a test that did not pass; long output lacks its middle
	Repro      string            `json:"repro,omitempty"`

	Attempts   []Attempt   `json:"attempts,omitempty"` // earlier runs of it, oldest first
	Triage     Triage      `json:"triage,omitempty"`
	Quarantine *Quarantine `json:"quarantine,omitempty"`

	since string // its output after its last subtest that failed
	read  bool   // it comes from a report, which has judged it
}

// Attempt is an earlier run of a test that was run again.
type Attempt struct {
	Status    Status        `json:"status"`
	Class     verdict.Class `json:"class,omitempty"`
	Signature string        `json:"signature,omitempty"`
	Message   string        `json:"message,omitempty"`
	Elapsed   time.Duration `json:"elapsed_ns"`
	Retried   bool          `json:"retried,omitempty"` // it was run again because of its class; false: by -count
}

// Teardown is the timeline of one fixture's end.
type Teardown struct {
	Name  string         `json:"name"`
	Took  time.Duration  `json:"took_ns"`
	Steps []TeardownStep `json:"steps"`
}

// TeardownStep is one check of a teardown.
type TeardownStep struct {
	Name    string        `json:"name"`
	Took    time.Duration `json:"took_ns"`
	Budget  time.Duration `json:"budget_ns,omitempty"`
	Detail  string        `json:"detail,omitempty"`
	Skipped string        `json:"skipped,omitempty"`
	Error   string        `json:"error,omitempty"`
}

// Memory is the memory of one device over a test or a wait.
type Memory struct {
	Device  string   `json:"device"`
	Total   int64    `json:"total,omitempty"`
	Target  int64    `json:"target,omitempty"` // what may be used at the end; 0 when there is no bound
	Peak    int64    `json:"peak"`
	After   int64    `json:"after"`
	Clear   bool     `json:"clear"`
	Points  []Point  `json:"points,omitempty"`
	Holders []Holder `json:"holders,omitempty"`
}

// Point is one reading.
type Point struct {
	After time.Duration `json:"after_ns"`
	Used  int64         `json:"used"`
}

// Holder is a process that holds device memory.
type Holder struct {
	PID     int    `json:"pid"`
	Bytes   int64  `json:"bytes,omitempty"`
	Command string `json:"command,omitempty"`
	Note    string `json:"note,omitempty"` // the test that it runs, its state
}

// Counts counts tests. Failed does not count a test that failed only because of its subtests.
type Counts struct {
	Tests      int                   `json:"tests"`
	Passed     int                   `json:"passed"`
	Failed     int                   `json:"failed"`
	Skipped    int                   `json:"skipped"`
	Unfinished int                   `json:"unfinished"`
	ByClass    map[verdict.Class]int `json:"by_class,omitempty"` // of failures
	Capacity   int                   `json:"capacity_skips"`     // skips because the machine lacks something
	Retried    int                   `json:"retried"`            // passed only after a retry
	Held       int                   `json:"quarantined"`        // failures that a quarantine entry accepts
	Triage     map[Triage]int        `json:"triage,omitempty"`
}

// ID names the test within a report.
func (t *Test) ID() string {
	if t.Name == "" {
		return t.Package
	}
	return t.Package + "." + t.Name
}

// Title is the name for people.
func (t *Test) Title() string {
	if t.Name == "" {
		return "(package)"
	}
	return t.Name
}

// counts reports whether the test is a failure of its own.
func (t *Test) counts() bool { return t.Status.Failed() && !t.Parent }

func decode(data json.RawMessage, into any) bool { return json.Unmarshal(data, into) == nil }
