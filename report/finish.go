package report

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/enginetest/enginetest/verdict"
)

// Report closes the collection: every failure gets its class, message, signature and the command
// that repeats it. The result is judged by the zero [Policy]; see [Report.Judge].
func (c *Collector) Report() *Report {
	r := &Report{
		Schema: SchemaVersion, Command: c.command, Shards: c.shards, Inputs: []Input{}, Packages: []Package{},
		Tests: []Test{},
	}
	for _, in := range c.inputs {
		r.Inputs = append(r.Inputs, *in)
	}
	if !c.first.IsZero() {
		r.Started, r.Elapsed = c.first, c.last.Sub(c.first)
	}
	for _, rec := range c.order {
		r.Tests = append(r.Tests, c.conclude(rec))
	}
	markParents(r.Tests)
	for _, name := range slices.Sorted(maps.Keys(c.packages)) {
		p := c.packages[name]
		if t, ok := c.outside(p, r.Tests); ok {
			r.Tests = append(r.Tests, t)
		}
		r.Packages = append(r.Packages, p.Package)
	}
	failPackages(r)
	r.Tests = append(r.Tests, c.unbuilt()...)
	r.sort()
	r.Judge(Policy{})
	return r
}

// failPackages marks the packages that have a failure: a retry that passes does not make up for the
// other tests.
func failPackages(r *Report) {
	failed := map[string]bool{}
	for i := range r.Tests {
		failed[r.Tests[i].Package] = failed[r.Tests[i].Package] || r.Tests[i].counts()
	}
	for i := range r.Packages {
		if failed[r.Packages[i].Name] {
			r.Packages[i].Status = StatusFail
		}
	}
}

func (r *Report) sort() {
	slices.SortStableFunc(r.Tests, func(a, b Test) int {
		return cmp.Or(cmp.Compare(a.Package, b.Package), a.Started.Compare(b.Started))
	})
}

// conclude makes one Test of all its runs. After a retry the last run counts; otherwise one that
// failed does.
func (c *Collector) conclude(rec *record) Test {
	for i, run := range rec.runs {
		run.flush()
		run.classify(c, i == len(rec.runs)-1)
	}
	main := len(rec.runs) - 1
	if !rec.runs[main].retry {
		if i := slices.IndexFunc(rec.runs, func(r *testRun) bool { return r.Status.Failed() }); i >= 0 {
			main = i
		}
	}
	t := rec.runs[main].Test
	for i, run := range rec.runs {
		if i != main {
			t.Attempts = append(t.Attempts, Attempt{
				Status: run.Status, Class: run.Class, Signature: run.Signature, Message: run.Message, Elapsed: run.Elapsed,
				Retried: i+1 < len(rec.runs) && rec.runs[i+1].retry,
			})
		}
	}
	return t
}

// classify fills in what follows from the output; last says that the test did not run again.
func (t *testRun) classify(c *Collector, last bool) {
	if t.read = t.final; t.final {
		return
	}
	switch t.Status {
	case StatusFail, StatusUnfinished:
		t.Output = t.log.String()
		t.since = t.Output[min(t.failing, len(t.Output)):]
		text := t.Output
		p := c.packages[t.Package]
		if t.Status == StatusUnfinished && p != nil {
			text += p.log.String() // how the process ended
		}
		f := classify(text, t.Verdicts)
		if t.Status == StatusUnfinished {
			f = died(text, f)
			if f.class == verdict.ClassTest && last && p != nil && p.ended {
				f = finding{verdict.ClassEngine, "the process exited before the test had ended", f.message}
			}
		}
		t.Class, t.Evidence, t.Message = f.class, f.evidence, abbreviate(f.message, 400)
		t.Signature = t.sign()
		t.Repro = t.repro(c.command)
	case StatusSkip:
		t.Output = t.log.String()
		cause := causeOf(t.Output)
		t.Message = abbreviate(cause.message, 400)
		if class := verdict.Worst(t.Verdicts...); class != "" {
			t.Class, t.Evidence = class, "recorded by "+orElse(t.Verdicts[0].Source, "the test")
		} else if _, ok := skipRules[0].match(cause.text, strings.ToLower(cause.text)); ok {
			t.Class, t.Evidence = skipRules[0].class, skipRules[0].name
		}
	}
}

// sign returns the signature of a failure. A failed expectation is told apart by its test: "Not
// equal" alone is no cause.
func (t *Test) sign() string {
	for _, v := range t.Verdicts {
		if v.Class == t.Class {
			return v.Signature
		}
	}
	if t.Class == verdict.ClassTest {
		return verdict.Signature(t.Class, t.ID()+": "+t.Message)
	}
	return verdict.Signature(t.Class, t.Message)
}

// markParents marks tests that failed only because a subtest failed: they have no message of their
// own.
func markParents(tests []Test) {
	failed := map[string]bool{}
	for i := range tests {
		if t := &tests[i]; t.Status.Failed() {
			for name := t.Name; ; {
				cut := strings.LastIndexByte(name, '/')
				if cut < 0 {
					break
				}
				name = name[:cut]
				failed[t.Package+"\x00"+name] = true
			}
		}
	}
	for i := range tests {
		t := &tests[i]
		if t.Status.Failed() && failed[t.Package+"\x00"+t.Name] && len(t.Verdicts) == 0 && !t.read &&
			!t.failedItself() {
			t.Parent, t.Class, t.Signature, t.Evidence, t.Message = true, "", "", "", "a subtest failed"
		}
		t.since, t.read = "", false
	}
}

// failedItself reports whether a test whose subtest failed has a failure of its own too: a crash, a
// leak, an expectation, or a message after that. What it said before is a log.
func (t *Test) failedItself() bool {
	output := unstyled(t.Output)
	if _, ok := crash(output); ok || t.Class == verdict.ClassLeak || len(messages(t.since)) > 0 {
		return true
	}
	return slices.ContainsFunc(messages(output), func(c cause) bool { return c.comparison })
}

// outside returns what failed in a package and in none of its tests: the build, TestMain, an exit,
// a panic in a goroutine.
func (c *Collector) outside(p *packageRecord, tests []Test) (Test, bool) {
	output := p.log.String()
	if !p.ended && p.failed == "" && len(p.runs) == 0 && output == "" {
		return Test{}, false
	}
	if p.ended && !p.Status.Failed() {
		return Test{}, false
	}
	p.Output = output
	if p.failed == "" && slices.ContainsFunc(p.runs, func(r *testRun) bool { return r.Status.Failed() }) {
		if !p.ended || p.Status.Failed() {
			return Test{}, false // a test has the failure
		}
	}
	t := testRun{Test: Test{Package: p.Name, Status: StatusFail, Elapsed: p.Elapsed, Shard: p.Shard}}
	if !p.ended {
		t.Status = StatusUnfinished
	}
	if b := c.builds[p.failed]; b != nil {
		output = b.String()
	}
	c.fail(&t, output, p.failed != "")
	return t.Test, true
}

// unbuilt returns the builds that failed and that no package has reported.
func (c *Collector) unbuilt() []Test {
	if len(c.packages) > 0 || len(c.builds) == 0 && len(c.strays) == 0 {
		return nil
	}
	var list []Test
	for _, path := range slices.Sorted(maps.Keys(c.builds)) {
		t := testRun{Test: Test{Package: path, Status: StatusFail}}
		c.fail(&t, c.builds[path].String(), true)
		list = append(list, t.Test)
	}
	if len(list) == 0 {
		t := testRun{Test: Test{Package: "go test", Status: StatusFail}}
		c.fail(&t, strings.Join(c.strays, "\n"), false)
		list = append(list, t.Test)
	}
	return list
}

// fail classifies a failure outside of tests.
func (c *Collector) fail(t *testRun, output string, build bool) {
	t.Output = output
	f := classifyPackage(output, build)
	t.Class, t.Evidence, t.Message = f.class, f.evidence, abbreviate(f.message, 400)
	t.Signature = verdict.Signature(t.Class, t.Package+": "+t.Message)
	t.Repro = t.repro(c.command)
}

// classifyPackage is classify for what failed outside of any test.
func classifyPackage(output string, build bool) finding {
	if build {
		f := classify(diagnostic.ReplaceAllStringFunc(output, func(line string) string {
			if fetching.MatchString(line) {
				return line
			}
			return ""
		}), nil)
		if !f.class.Retryable() {
			f = finding{verdict.ClassTest, "it does not build", firstError(output)}
		}
		return f
	}
	return died(output, classify(output, nil))
}

// diagnostic is what a compiler says of the code; the rest is what became of the compiler.
var diagnostic = regexp.MustCompile(`(?m)^\S+\.(go|c|cc|cpp|cu|h|s):\d+(:\d+)?: .*(\n\t.*)*$`)

// fetching is how the go command says that it cannot get a module.
var fetching = regexp.MustCompile(`: (Get|reading) "?https?://|dial tcp`)

// exited is how the go command says that a test binary ended by itself.
var exited = regexp.MustCompile(`(?m)^exit status (\d+)$`)

// died finds how the process of a test ended when f says nothing of it.
func died(output string, f finding) finding {
	lower := strings.ToLower(output)
	switch {
	case f.class != verdict.ClassTest:
	case strings.Contains(lower, "signal: killed"):
		return finding{
			verdict.ClassCapacity,
			"the process was killed from outside, as for memory or a limit of the machine", "signal: killed",
		}
	case strings.Contains(lower, "signal: terminated"):
		return finding{verdict.ClassInfra, "the run was cancelled", "signal: terminated"}
	case exited.MatchString(output) && exited.FindStringSubmatch(output)[1] != "1":
		line := exited.FindString(output)
		return finding{verdict.ClassEngine, "the process exited before its tests had ended", line}
	}
	return f
}

// firstError returns the first line of a compiler's output that is no heading.
func firstError(output string) string {
	for line := range strings.Lines(output) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "# ") {
			return line
		}
	}
	return "it does not build"
}
