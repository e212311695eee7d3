package engine

import (
	"fmt"
	"strings"
	"time"
)

// ShutdownReport says what ended an engine, phase by phase. In process these are drain (when there was one), abort (the running step ends, and
// so do all requests) and release. A child core adds exit (it ends by itself), SIGTERM and SIGKILL (when it did not), and reap.
type ShutdownReport struct {
	Phases []ShutdownPhase
}

// ShutdownPhase is one step of a shutdown.
type ShutdownPhase struct {
	Name   string
	Took   time.Duration
	Detail string // what happened, in a few words
}

// String prints a line a phase.
func (r ShutdownReport) String() string {
	var b strings.Builder
	for _, p := range r.Phases {
		fmt.Fprintf(&b, "%-8s %8s  %s\n", p.Name, p.Took.Round(10*time.Microsecond), p.Detail)
	}
	return b.String()
}

// add enters a phase that ends now.
func (r *ShutdownReport) add(name string, began time.Time, detail string) {
	r.Phases = append(r.Phases, ShutdownPhase{name, time.Since(began), detail})
}

// ShutdownReport says how the engine ended, as far as it has; complete when Shutdown has returned.
func (e *Engine) ShutdownReport() ShutdownReport { return e.b.shutdownReport() }

func (c *core) shutdownReport() ShutdownReport {
	c.mu.Lock()
	defer c.mu.Unlock()
	return ShutdownReport{append([]ShutdownPhase(nil), c.report.Phases...)}
}
