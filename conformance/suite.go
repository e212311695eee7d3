package conformance

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/llm"
)

// property is one thing that every engine should do.
type property struct {
	name  string // "group/what holds"
	why   string // it matters, in a sentence
	needs []Capability
	check func(c *check) error
}

// suite is a run of all properties against one engine.
type suite struct {
	ctx         context.Context
	opts        options
	open        starter
	properties  []property
	shared      *live        // the engine that answers most properties; nil: not started, or given up
	hasLogprobs *bool        // nil: not known yet
	gap         gap          // between the answers that the property compares
	whole       []llm.Output // answers to long requests, as far as they are known
	report      Report
	began       time.Time
}

// properties are all of them, in the order in which they are checked.
var properties = slices.Concat(lifecycle, underLoad, sameAnswer, draws, logprobs, parameters, structured, stops, refusals,
	wireProperties, ollamaProperties, poolingProperties)

func newSuite(ctx context.Context, open starter, opts []Option) *suite {
	s := &suite{ctx: ctx, opts: newOptions(opts), open: open, began: time.Now()}
	s.properties = properties
	s.report.Engine, s.report.Rule = s.opts.name, "bit-equal"
	if tol := s.opts.tolerance; tol > 0 {
		s.report.Rule = fmt.Sprintf("log-probabilities within %g nats; answers may part where two tokens are that close", tol)
	}
	return s
}

// chosen are the properties that option Only leaves.
func (s *suite) chosen() []property {
	if s.opts.only == nil {
		return s.properties
	}
	return slices.DeleteFunc(slices.Clone(s.properties), func(p property) bool {
		return !s.opts.only.MatchString(p.name)
	})
}

// check is one property at work.
type check struct {
	context.Context
	s       *suite
	p       property
	engines []*live // its own
	notes   []string
	after   []func()
}

// check checks one property. It never touches a test.
func (s *suite) check(p property) Result {
	began := time.Now()
	r := Result{Property: p.name, Why: p.why, Verdict: Passes}
	c, err := s.attempt(p)
	if lack := lackOf(err, p.needs); lack != nil {
		r.Verdict, r.Lacking, r.Detail = Lacks, lack.capability, lack.Error()
		if slices.Contains(s.opts.claims, lack.capability) {
			r.Verdict, r.Detail = Fails, "the engine claims a capability that it lacks: "+r.Detail
		}
	} else if err != nil {
		r.Verdict, r.Detail = Fails, err.Error()
	} else {
		r.Detail = c.measured()
	}
	if r.Verdict == Fails {
		s.giveUp() // the next property must not inherit the damage
	}
	r.Took = time.Since(began)
	s.report.Results = append(s.report.Results, r)
	s.report.Took = time.Since(s.began)
	return r
}

// attempt runs a property's check in a goroutine, so that a hang is a failure of one property.
func (s *suite) attempt(p property) (*check, error) {
	ctx, cancel := context.WithTimeoutCause(s.ctx, s.opts.limit,
		fmt.Errorf("the property took longer than %s", s.opts.limit))
	defer cancel()
	c := &check{Context: ctx, s: s, p: p}
	s.gap.reset()
	result := make(chan error, 1)
	go func() { result <- c.run() }()
	var err error
	select {
	case err = <-result:
	case <-ctx.Done():
		select {
		case err = <-result:
		case <-time.After(graceAfterLimit):
			s.shared = nil // whatever hangs has it
			return c, fmt.Errorf("a call of the engine has not returned %s after its context ended (%w)",
				graceAfterLimit, context.Cause(ctx))
		}
	}
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", err, cause)
	}
	return c, err
}

// graceAfterLimit is how long an engine may take to notice that its caller's context has ended.
const graceAfterLimit = 30 * time.Second

// run is the check with its capabilities before and its engines' teardown after.
func (c *check) run() (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
		for _, f := range c.after {
			f()
		}
		for _, l := range c.engines {
			err = errors.Join(err, l.close())
		}
	}()
	if len(c.p.needs) > 0 {
		e, err := c.engine()
		if err != nil {
			return err
		}
		if lack := c.s.missing(e.engine(), c.p.needs); lack != nil {
			return lack
		}
	}
	return c.p.check(c)
}

// notef adds to what a passing property measured.
func (c *check) notef(format string, args ...any) {
	if note := fmt.Sprintf(format, args...); !slices.Contains(c.notes, note) {
		c.notes = append(c.notes, note)
	}
}

// measured are the notes of a check, and how far an engine's answers are apart that promises no
// equality.
func (c *check) measured() string {
	if apart := c.s.gap.String(); apart != "" && c.s.opts.tolerance > 0 {
		c.notef("%s", apart)
	}
	return strings.Join(c.notes, "; ")
}

// giveUp ends the shared engine, so that the next property gets a new one. What it left is not
// reported again: the property that failed is the news.
func (s *suite) giveUp() {
	if s.shared != nil {
		_ = s.shared.close()
		s.shared = nil
	}
}

// end ends the engine that answered all properties and proves it gone.
func (s *suite) end() Result {
	r := Result{
		Property: "lifecycle/gone after everything", Verdict: Passes,
		Why: "an engine that has answered every property of this suite must leave nothing behind",
	}
	if s.shared == nil {
		return r
	}
	began := time.Now()
	if err := s.shared.close(); err != nil {
		r.Verdict, r.Detail = Fails, err.Error()
	}
	s.shared, r.Took = nil, time.Since(began)
	s.report.Results = append(s.report.Results, r)
	s.report.Took = time.Since(s.began)
	return r
}

// engine returns the engine that properties share, and starts it when there is none.
func (c *check) engine() (*live, error) {
	if c.s.shared != nil {
		return c.s.shared, nil
	}
	l, err := c.s.start(c, c.s.open)
	if err == nil {
		c.s.shared = l
	}
	return l, err
}

// alone ends the shared engine: a property that starts engines of its own measures them alone.
func (c *check) alone() error {
	if c.s.shared == nil {
		return nil
	}
	l := c.s.shared
	c.s.shared = nil
	if err := l.close(); err != nil {
		return fmt.Errorf("the engine that answered the properties before this one: %w", err)
	}
	return nil
}

// fresh starts an engine for this property. It is ended, and proven gone, when the property is
// over.
func (c *check) fresh() (*live, error) { return c.start(c.s.open) }

func (c *check) start(open starter) (*live, error) {
	l, err := c.s.start(c, open)
	if err == nil {
		c.engines = append(c.engines, l)
	}
	return l, err
}

func (s *suite) start(ctx context.Context, open starter) (*live, error) {
	opts := append([]harness.Option{harness.Name(s.opts.name)}, s.opts.fixture...)
	f, err := open(ctx, opts)
	if err != nil {
		return nil, err
	}
	return &live{fixture: f, limit: s.opts.limit}, nil
}
