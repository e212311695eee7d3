package llm

import (
	"fmt"
	"strings"
	"time"
)

// ShutdownReport says how an engine ended, phase by phase. The bundled engine in process has drain
// (when there was one), abort (the running step ends, and so do all requests) and release. A child
// core adds exit (it ends by itself), SIGTERM and SIGKILL (when it did not), and reap.
type ShutdownReport struct {
	Phases []ShutdownPhase
}

// ShutdownPhase is one step of a shutdown.
type ShutdownPhase struct {
	Name   string
	Took   time.Duration
	Detail string // what happened, in a few words
}

// String formats the report, one line per phase.
func (r ShutdownReport) String() string {
	var b strings.Builder
	for _, p := range r.Phases {
		fmt.Fprintf(&b, "%-8s %8s  %s\n", p.Name, p.Took.Round(10*time.Microsecond), p.Detail)
	}
	return b.String()
}

// Add appends a phase that started at began and ends now.
func (r *ShutdownReport) Add(name string, began time.Time, detail string) {
	r.Phases = append(r.Phases, ShutdownPhase{name, time.Since(began), detail})
}
