package report

import (
	"slices"
	"strings"
	"time"

	"github.com/enginetest/enginetest/internal/testlog"
	"github.com/enginetest/enginetest/verdict"
)

// Collector gathers the results of any number of inputs. The zero value is ready to use; it is not
// safe for concurrent use.
type Collector struct {
	inputs   []*Input
	input    *Input
	source   Source
	text     textParser
	tests    map[string]*record
	order    []*record
	packages map[string]*packageRecord
	builds   map[string]*log
	strays   []string
	retrying bool
	first    time.Time
	last     time.Time
	command  []string
	shards   []Shard
	progress func(Test)
}

// A record holds all runs of one test.
type record struct {
	runs []*testRun
}

// A testRun is one run of a test while its events come in.
type testRun struct {
	Test
	log     log
	partial string
	size    int // of its output so far
	failing int // that size when its last subtest failed
	ended   bool
	retry   bool // it is a retry of the run before
	final   bool // it comes from a report and is classified
}

type packageRecord struct {
	Package
	log     log
	partial string
	failed  string // the import path of what did not build
	runs    []*testRun
}

// OnEnd sets a function that is called when a test ends, for progress while a run goes on.
func (c *Collector) OnEnd(f func(Test)) { c.progress = f }

// Command records the command that ran the tests; the commands that repeat a test take its flags
// from it.
func (c *Collector) Command(args []string) { c.command = args }

// Retrying declares whether the inputs that follow are retries: of a test that ran before, the last
// run then counts.
func (c *Collector) Retrying(on bool) { c.retrying = on }

// Shard declares that the inputs are one part of a run.
func (c *Collector) Shard(s Shard) { c.shards = append(c.shards, s) }

func (c *Collector) begin(src Source, f Format) {
	if c.tests == nil {
		c.tests, c.packages, c.builds = map[string]*record{}, map[string]*packageRecord{}, map[string]*log{}
	}
	c.source, c.input = src, &Input{Name: src.Name, Format: f, Shard: src.Shard}
	c.inputs = append(c.inputs, c.input)
	c.text = textParser{emit: c.event, pkg: src.Package}
}

func (c *Collector) end() {
	if c.input.Format == FormatText {
		c.text.end()
	}
	for _, r := range c.order { // a test of this input that never ended does not wait for the next input
		for _, run := range r.runs {
			run.flush()
		}
	}
}

// Begin opens a live stream: [Collector.WriteLine] adds to it, and the function that Begin returns
// ends it.
func (c *Collector) Begin(src Source, f Format) (end func()) {
	c.begin(src, f)
	return c.end
}

// WriteLine adds one line of the stream that Begin opened.
func (c *Collector) WriteLine(line string) { c.line(line) }

func (c *Collector) event(e event) {
	c.clock(e.Time)
	if e.ImportPath != "" && e.Package == "" {
		if e.Action == "build-output" {
			c.build(e.ImportPath).add(e.Output)
		}
		return
	}
	if e.Package == "" {
		e.Package = c.source.Package
	}
	p := c.pkg(e.Package)
	if e.Test == "" {
		c.packageEvent(p, e)
		return
	}
	c.testEvent(p, e)
}

func (c *Collector) clock(t time.Time) {
	if t.IsZero() {
		return
	}
	if c.first.IsZero() || t.Before(c.first) {
		c.first = t
	}
	if t.After(c.last) {
		c.last = t
	}
}

func (c *Collector) build(path string) *log {
	if c.builds[path] == nil {
		c.builds[path] = &log{}
	}
	return c.builds[path]
}

func (c *Collector) pkg(name string) *packageRecord {
	p := c.packages[name]
	if p == nil {
		p = &packageRecord{Package: Package{Name: name, Status: StatusUnfinished, Shard: c.source.Shard}}
		c.packages[name] = p
	}
	return p
}

func (c *Collector) packageEvent(p *packageRecord, e event) {
	switch e.Action {
	case "output":
		p.partial = eachLine(p.partial, e.Output, func(line string) {
			p.Cached = p.Cached || strings.HasSuffix(strings.TrimSpace(line), "(cached)")
			p.log.add(line)
		})
	case "pass", "fail", "skip":
		p.Elapsed += seconds(e.Elapsed)
		if p.ended && p.Status.Failed() && !c.retrying {
			return // it ran in parts: one that failed counts
		}
		p.ended, p.Status, p.failed = true, Status(e.Action), e.FailedBuild
	}
}

func (c *Collector) testEvent(p *packageRecord, e event) {
	t := c.run(p, e)
	switch e.Action {
	case "output":
		t.output(e.Output)
	case "attr":
		if t.Attributes == nil {
			t.Attributes = map[string]string{}
		}
		t.Attributes[e.Key] = e.Value
	case "pass", "fail", "skip", "bench":
		t.flush()
		t.ended, t.Status, t.Elapsed = true, Status(e.Action), seconds(e.Elapsed)
		if t.Status == StatusFail {
			c.subtestFailed(e)
		}
		if e.Action == "bench" {
			t.Status = StatusPass
		}
		if t.Status == StatusPass {
			t.log = log{}
		}
		if c.progress != nil {
			now := t.Test
			now.Output = t.log.String()
			c.progress(now)
		}
	}
}

// subtestFailed notes in the tests around one that failed what they have said so far.
func (c *Collector) subtestFailed(e event) {
	for name := e.Test; strings.Contains(name, "/"); {
		name = name[:strings.LastIndexByte(name, '/')]
		if r := c.tests[e.Package+"\x00"+name]; r != nil {
			around := r.runs[len(r.runs)-1]
			around.failing = around.size
		}
	}
}

// run returns the run of a test that an event belongs to: a new one when the test begins again.
func (c *Collector) run(p *packageRecord, e event) *testRun {
	key := e.Package + "\x00" + e.Test
	r := c.tests[key]
	if r == nil {
		r = &record{}
		c.tests[key] = r
		c.order = append(c.order, r)
	}
	if n := len(r.runs); n > 0 && e.Action != "run" {
		if last := r.runs[n-1]; last.ended || last.Shard == c.source.Shard {
			return last
		}
	}
	t := &testRun{Test: Test{
		Package: e.Package, Name: e.Test, Status: StatusUnfinished, Started: e.Time, Shard: c.source.Shard,
	}}
	if n := len(r.runs); n > 0 {
		t.retry = c.retrying || !r.runs[n-1].ended // a killed shard that ran again
	}
	r.runs = append(r.runs, t)
	p.runs = append(p.runs, t)
	c.input.Tests++
	return t
}

func (t *testRun) output(text string) { t.partial = eachLine(t.partial, text, t.line) }

// line takes one whole line of output; what Record and Attach wrote is kept as values and not as
// text.
func (t *testRun) line(line string) {
	if !strings.Contains(line, "enginetest-") {
		t.size += len(line)
		t.log.add(line)
		return
	}
	if v, ok := verdict.Parse(line); ok {
		if !slices.ContainsFunc(t.Verdicts, func(old verdict.Verdict) bool { return old.Signature == v.Signature }) {
			t.Verdicts = append(t.Verdicts, v)
		}
		return
	}
	if a, ok := testlog.ParseAttachment(line); ok {
		t.attach(a)
		return
	}
	t.log.add(line)
}

func (t *testRun) flush() {
	if t.partial != "" {
		t.line(t.partial)
		t.partial = ""
	}
}

// eachLine passes the whole lines of partial+text to f and returns the rest: go test -json cuts
// long lines into several events.
func eachLine(partial, text string, f func(string)) string {
	text = partial + text
	for {
		i := strings.IndexByte(text, '\n')
		if i < 0 {
			if len(text) > maxLine {
				f(text)
				return ""
			}
			return text
		}
		f(text[:i+1])
		text = text[i+1:]
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
