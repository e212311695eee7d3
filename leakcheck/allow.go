package leakcheck

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
)

// ErrPattern is wrapped by the error of a check that was given an [Allow] whose pattern can match
// nothing.
var ErrPattern = errors.New("leakcheck: not a pattern")

// Allow accepts a finding: a known leak of a library, a goroutine that lives as long as the
// process. The pattern is compared with the whole of [Finding.Signature], which starts with the
// kind; "*" stands for any text. Copy it from the report:
//
//	leakcheck.Allow("reference: global github.com/acme/llm.kwCache → *llm.Engine", "one entry for each model, never more")
//	leakcheck.Allow("goroutine: go.opencensus.io/stats/view.(*worker).start created by *", "started once by its init")
//
// The reason is for the reader of the test, and is listed in [Error.Accepted]. [Guard] logs an
// Allow that matched nothing: it can go.
func Allow(pattern, reason string) Option {
	a := newAllowance(pattern, reason)
	return func(c *config) { c.allow = append(c.allow, a) }
}

// Unmatched lists the patterns given to [Allow] in these options that have not matched anything so
// far.
func Unmatched(opts ...Option) (patterns []string) {
	for _, a := range configure(opts).allow {
		if !a.matched.Load() {
			patterns = append(patterns, a.pattern)
		}
	}
	return patterns
}

// allowance is one Allow, shared by the checks that it is given to.
type allowance struct {
	pattern, reason string
	expr            *regexp.Regexp
	err             error
	matched         atomic.Bool
}

var kinds = []Kind{
	KindReference, KindGoroutine, KindBuffer, KindDescriptor, KindSocket, KindMapping, KindSharedMemory,
	KindProcess, KindThread, KindTemporaryFile, KindMemory,
}

func newAllowance(pattern, reason string) *allowance {
	a := &allowance{pattern: pattern, reason: reason}
	kind, rest, ok := strings.Cut(pattern, ": ")
	switch {
	case !ok || !slices.Contains(kinds, Kind(kind)):
		a.err = fmt.Errorf("%w: Allow(%q): it does not start with a kind, as in %q; the report prints the whole pattern", ErrPattern, pattern, "goroutine: llm.(*Loop).run")
	case strings.Trim(rest, "* ") == "":
		a.err = fmt.Errorf("%w: Allow(%q): it would accept every %s", ErrPattern, pattern, kind)
	}
	a.expr = regexp.MustCompile(`(?s)^` + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, `.*`) + `$`)
	return a
}

// allowed returns the allowance that covers the finding; nil when none does.
func allowed(f Finding, allow []*allowance) *allowance {
	for _, a := range allow {
		if a.err == nil && a.expr.MatchString(f.Signature) {
			a.matched.Store(true)
			return a
		}
	}
	return nil
}

// newError sorts findings into those that count and those that an Allow accepts; nil when none
// counts.
func newError(fs []Finding, allow []*allowance) error {
	var errs []error
	seen := map[string]bool{}
	for _, a := range allow {
		if a.err != nil && !seen[a.pattern] {
			seen[a.pattern] = true
			errs = append(errs, a.err)
		}
	}
	e := &Error{}
	for _, f := range fs {
		if a := allowed(f, allow); a != nil {
			f.Reason = a.reason
			e.Accepted = append(e.Accepted, f)
		} else {
			e.Findings = append(e.Findings, f)
		}
	}
	if e.Findings = byLibrary(e.Findings); len(e.Findings) > 0 {
		errs = append([]error{e}, errs...)
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}
