package conformance

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/internal/repro"
)

// Run checks every property of the suite against the engine that open starts; each is a subtest.
// What the engine lacks is logged at the end.
func Run[E harness.Engine](t *testing.T, open func(context.Context) (E, error), opts ...Option) Report {
	t.Helper()
	s := newSuite(t.Context(), starterOf(open), append([]Option{Name(t.Name())}, opts...))
	for _, p := range s.chosen() {
		t.Run(p.name, func(t *testing.T) {
			r := s.check(p)
			switch r.Verdict {
			case Fails:
				t.Errorf("%s\nto reproduce: %s", r.text(), repro.Command(repro.Package(), t.Name()))
			case Lacks:
				t.Skip("the engine lacks " + r.Detail)
			case Passes:
				if r.Detail != "" {
					t.Log(r.Detail)
				}
			}
		})
	}
	if r := s.end(); r.Verdict == Fails {
		t.Errorf("%s", r.text())
	}
	t.Logf("%s", s.report)
	return s.report
}

// Check is Run without a test. It returns what it found; the error is that of ctx when it ended
// early.
func Check[E harness.Engine](ctx context.Context, open func(context.Context) (E, error),
	opts ...Option,
) (Report, error) {
	s := newSuite(ctx, starterOf(open), opts)
	for _, p := range s.chosen() {
		s.check(p)
	}
	s.end()
	return s.report, ctx.Err()
}

// text is a failure as a test prints it.
func (r Result) text() string {
	return fmt.Sprintf("%s\nwhy it matters: %s", strings.TrimRight(r.Detail, "\n"), r.Why)
}
