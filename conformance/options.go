package conformance

import (
	"context"
	"regexp"
	"testing"
	"time"

	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/llm"
)

// Option changes what [Run] and [Check] do.
type Option func(*options)

type options struct {
	name      string
	prompts   []string
	tokens    [][]int32
	without   []Capability
	claims    []Capability
	tolerance float64
	short     bool
	draws     int
	limit     time.Duration
	only      *regexp.Regexp
	fixture   []harness.Option
	tight     starter
	faulty    func(llm.Fault) starter
	bad       []namedStarter
}

// starter starts an engine in a fixture.
type starter func(ctx context.Context, opts []harness.Option) (*harness.Fixture, error)

type namedStarter struct {
	name  string
	start starter
}

// starterOf forgets the engine's type.
func starterOf[E harness.Engine](open func(context.Context) (E, error)) starter {
	return func(ctx context.Context, opts []harness.Option) (*harness.Fixture, error) {
		return harness.Open(ctx, open, opts...)
	}
}

// defaultPrompts suit any model of English text. They start alike in pairs, for prefix caches.
var defaultPrompts = []string{
	"The lighthouse",
	"The lighthouse stood on a cliff above the sea, and every evening the keeper climbed its stairs to light the lamp.",
	"Once upon a time there was a girl who",
	"Once upon a time there was a boy who never listened to anyone, until one day",
	"2+3=",
	"The capital of France is",
	"List of colours: red, green, blue, red, green, blue, red, green,",
	"Dear Sir or Madam, I am writing to you because the parcel that I ordered three weeks ago has still not arrived, and",
}

func newOptions(opts []Option) options {
	o := options{
		name: "engine", prompts: defaultPrompts, short: testing.Testing() && testing.Short(),
		limit: 2 * time.Minute,
	}
	for _, opt := range opts {
		opt(&o)
	}
	switch {
	case o.draws > 0:
	case o.short:
		o.draws = 600
	default:
		o.draws = 20_000
	}
	return o
}

// Name is what reports call the engine.
func Name(name string) Option { return func(o *options) { o.name = name } }

// Prompts replaces the texts that the engine is asked to continue: at least four, of different
// lengths. One of them should make the model end its answer by itself within 64 tokens.
func Prompts(texts ...string) Option { return func(o *options) { o.prompts = texts } }

// TokenPrompts asks the engine with token ids only, at least four prompts: for an engine without a
// tokenizer.
func TokenPrompts(ids ...[]int32) Option {
	return func(o *options) { o.tokens, o.without = ids, append(o.without, Text) }
}

// Without declares that the engine lacks capabilities, where it would ignore a parameter without
// refusing it. The properties that need them are listed as lacking.
func Without(capabilities ...Capability) Option {
	return func(o *options) { o.without = append(o.without, capabilities...) }
}

// Claims declares that the engine has capabilities: a property that finds one of them lacking
// fails.
func Claims(capabilities ...Capability) Option {
	return func(o *options) { o.claims = append(o.claims, capabilities...) }
}

// Tolerance is for an engine that does not promise bit-equal answers: the log-probabilities of one
// token may differ by this many nats, and where two answers first differ, the two tokens must be
// that close in both of them; the rest of such answers is not compared. Zero, the default, is
// equality.
func Tolerance(nats float64) Option { return func(o *options) { o.tolerance = nats } }

// Short makes the suite take fewer draws and fewer lives; it is the default under go test -short.
func Short(short bool) Option { return func(o *options) { o.short = short } }

// Draws is how many tokens each property of the sampler draws; the default is 20,000, and 600 of a
// short suite.
func Draws(n int) Option { return func(o *options) { o.draws = n } }

// Limit bounds each property; the default is 2 minutes.
func Limit(d time.Duration) Option { return func(o *options) { o.limit = d } }

// Only checks the properties whose name the expression matches.
func Only(expr *regexp.Regexp) Option { return func(o *options) { o.only = expr } }

// Fixture passes options to the fixtures in which engines are started.
func Fixture(opts ...harness.Option) Option {
	return func(o *options) { o.fixture = append(o.fixture, opts...) }
}

// Tight opens the same engine with so little cache memory that four requests of 64 tokens each do
// not fit in it together: answers must not depend on what the engine does then.
func Tight[E harness.Engine](open func(context.Context) (E, error)) Option {
	return func(o *options) { o.tight = starterOf(open) }
}

// Faulty opens the same engine with an injected fault.
func Faulty[E harness.Engine](open func(context.Context, llm.Fault) (E, error)) Option {
	return func(o *options) {
		o.faulty = func(f llm.Fault) starter {
			return starterOf(func(ctx context.Context) (E, error) { return open(ctx, f) })
		}
	}
}

// MustNotStart is an open that must fail, with a name for what is wrong with it: a missing model, a
// corrupt file, too little memory. It may be given more than once.
func MustNotStart[E harness.Engine](name string, open func(context.Context) (E, error)) Option {
	return func(o *options) { o.bad = append(o.bad, namedStarter{name, starterOf(open)}) }
}
