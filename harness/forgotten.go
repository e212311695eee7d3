package harness

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/enginetest/enginetest/internal/engines"
	"github.com/enginetest/enginetest/internal/origin"
	"github.com/enginetest/enginetest/leakcheck"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/verdict"
)

// register enters the engine among those that are open in this process: other fixtures name it when
// this one is forgotten. The bundled engine is entered already.
func (f *Fixture) register(e Engine, held []ledger.Holding) {
	if f.entry = engines.Manage(e); f.entry == nil {
		f.entry = engines.Open(engines.Entry{
			Name: f.opts.name, Place: f.place, PIDs: pidsOf(f.processes),
			Holdings: func() []ledger.Holding { return held },
		})
		f.entry.Manage(true)
	}
	// A fixture that is dropped without Close can end its engine no more.
	runtime.AddCleanup(f, func(d dropped) {
		d.host.leave()
		d.makers.Close()
		d.entry.Manage(false)
		for _, release := range d.owned {
			release()
		}
	}, dropped{hostBaseline{shared: f.host.shared}, f.entry, f.gpu.owned, f.evidence.makers})
}

// dropped is what is left of a fixture that no one refers to.
type dropped struct {
	host  hostBaseline
	entry *engines.Handle
	owned []func()

	makers *origin.Makers
}

func pidsOf(list []process) (pids []int) {
	for _, p := range list {
		pids = append(pids, p.pid)
	}
	return pids
}

// ForgottenError says that an engine of this process was opened after the fixture, outside of any
// fixture, and never shut down. Unwrap returns what was found of it.
type ForgottenError struct {
	Engines []string // "engine opened at app_test.go:44, never shut down"
	Held    int64    // by their own ledgers
	Found   *leakcheck.Error
	driver  string
}

// Error names the engines, and under them in one line what is theirs or came with them.
func (e *ForgottenError) Error() string {
	s := strings.Join(e.Engines, "; ")
	if e.Held > 0 {
		s = ledger.FormatBytes(e.Held) + ": " + s
	}
	s += "\n    with it came " + summary(e.Found.Findings)
	if e.driver != "" {
		s += "; and the CUDA driver opened " + e.driver
	}
	return s + "\n    shut it down before the fixture ends, or start it with a fixture of its own"
}

// Unwrap returns the findings.
func (e *ForgottenError) Unwrap() error { return e.Found }

// Verdicts returns one leak for all of it.
func (e *ForgottenError) Verdicts() []verdict.Verdict {
	text, _, _ := strings.Cut(e.Error(), "\n")
	return []verdict.Verdict{{
		Class: verdict.ClassLeak, Source: "harness", Message: text, Resource: "engine", Value: e.Held, Unit: "bytes",
	}}
}

// summary names the first finding of each kind, and counts the others.
func summary(found []leakcheck.Finding) string {
	count := map[leakcheck.Kind]int{}
	for _, f := range found {
		count[f.Kind]++
	}
	var parts []string
	for _, f := range found {
		n := count[f.Kind]
		switch {
		case n == 1:
			parts = append(parts, f.Text)
		case n > 1:
			parts = append(parts, fmt.Sprintf("%s and %d more (%s)", f.Text, n-1, f.Kind))
		}
		delete(count, f.Kind)
	}
	return strings.Join(parts, ", ")
}

// explained puts an engine that was forgotten before the findings that are its traces.
func (f *Fixture) explained(found *leakcheck.Error) error {
	list := engines.Forgotten(f.opened)
	if len(list) == 0 {
		return found
	}
	e := &ForgottenError{Found: found, driver: f.host.ofDriver()}
	for _, entry := range list {
		e.Engines = append(e.Engines, entry.String())
		e.Held += entry.Bytes()
	}
	return e
}

// opening is when and where a fixture was opened.
type opening struct {
	opened time.Time
	place  string
}

func here() opening { return opening{time.Now(), engines.Place()} }

// forgottenToo names the engines that were forgotten, for a check that was not made.
func (f *Fixture) forgottenToo() (s string) {
	for _, e := range engines.Forgotten(f.opened) {
		s += "; " + e.String()
	}
	return s
}
