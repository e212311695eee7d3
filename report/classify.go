package report

import (
	"regexp"
	"strings"

	"github.com/enginetest/enginetest/verdict"
)

// A finding is what classify concluded about one failure.
type finding struct {
	class    verdict.Class
	evidence string
	message  string
}

// classify finds the class of a failure from its output. What the toolkit recorded comes first; the
// text decides for everything else, and when nothing speaks for another class the expectation of
// the test was not met.
func classify(output string, recorded []verdict.Verdict) finding {
	output = unstyled(output)
	lower := strings.ToLower(output)
	cause := causeOf(output)
	if class := verdict.Worst(recorded...); class != "" && (!class.Retryable() || !excuses(output, lower, cause)) {
		for _, v := range recorded {
			if v.Class == class {
				return finding{class, "recorded by " + orElse(v.Source, "the test"), orElse(v.Message, cause.message)}
			}
		}
	}
	if f, ok := crash(output); ok {
		if f.class == verdict.ClassTest && f.raised != "" {
			if g, ok := judge(told(strings.Split(f.raised, "\n")), f.raised); ok {
				return finding{g.class, g.evidence, f.message}
			}
		}
		return f.finding
	}
	if f, ok := deviceHeld(output); ok {
		return f
	}
	if strings.Contains(output, " never fired: its point was passed ") {
		return finding{verdict.ClassTest, "an injected fault that never struck", cause.message}
	}
	if shutdownOnly.MatchString(output) && strings.Contains(output, outlived) {
		return finding{verdict.ClassLeak, "a process outlived its server", cause.message}
	}
	if shutdownOnly.MatchString(output) && tooSlow.MatchString(output) {
		return finding{verdict.ClassTimeout, "a server did not end in its time", cause.message}
	}
	if shutdownOnly.MatchString(output) {
		return finding{verdict.ClassEngine, "a fixture's shutdown failed and left nothing", cause.message}
	}
	if f, ok := judge(cause, output); ok {
		return f
	}
	if cleanup.MatchString(output) && len(messages(output)) < 2 {
		return finding{verdict.ClassLeak, "something still writes to the test's folder", cause.message}
	}
	if !cause.mixed && returned(cause) {
		return finding{verdict.ClassEngine, "an error that the test did not expect", cause.message}
	}
	return finding{verdict.ClassTest, "no evidence for another class", cause.message}
}

// cleanup is how the testing package says that a folder got new files while it was removed.
var cleanup = regexp.MustCompile(`TempDir RemoveAll cleanup: .*directory not empty`)

// judge finds the class of a failure by its cause, and by what is decisive anywhere in the output.
func judge(c cause, output string) (finding, bool) {
	f, ok := reason(c, output)
	if c.mixed && (f.class == verdict.ClassTimeout || f.class.Retryable()) {
		return finding{}, false // the expectation beside it is more serious
	}
	return f, ok
}

// reason looks for the typed and the plain evidence of a cause, what is decisive anywhere first.
func reason(c cause, output string) (finding, bool) {
	c.text = decided(c.text)
	if !c.comparison && exhausted.MatchString(c.text) {
		if absurd(c.text) {
			return finding{verdict.ClassEngine, "more memory than any machine has", c.message}, true
		}
		return finding{verdict.ClassCapacity, "a program ran out of memory", c.message}, true
	}
	if m := uncaught.FindStringSubmatch(c.text); m != nil {
		if f, ok := machine(m[1], m[1]); ok {
			return finding{f.class, f.evidence, c.message}, true
		}
	}
	if childFailed(c.text) {
		return finding{}, false
	}
	lower := strings.ToLower(output)
	for _, r := range anywhere {
		if line, ok := r.match(output, lower); ok {
			return finding{r.class, r.name, orElse(c.message, line)}, true
		}
	}
	if c.comparison {
		return finding{}, false
	}
	if defect.MatchString(c.text) {
		return finding{verdict.ClassEngine, "an exception that a mistake raises", c.message}, true
	}
	if counted.MatchString(c.text) {
		return finding{verdict.ClassLeak, "the test counts what is left", c.message}, true
	}
	if f, ok := machine(c.errors(), c.text); ok && (f.class != verdict.ClassInfra || !beside(c.text)) {
		if ownPort(output, c.text) {
			f.class, f.evidence = verdict.ClassLeak, "its port is still in use"
		}
		return finding{f.class, f.evidence, c.message}, true
	}
	if last := lastWords(output, c); last != "" {
		if f, ok := machine(last, last); ok {
			return finding{f.class, f.evidence, c.message + ": " + last}, true
		}
	}
	return program(c)
}

// program finds what the engine, or another program that the test runs, failed with.
func program(c cause) (finding, bool) {
	lower := strings.ToLower(c.text)
	if wronglyAsked.MatchString(lower) {
		return finding{}, false
	}
	if rpcFailed.MatchString(c.text) {
		return finding{verdict.ClassEngine, "the engine's server returned an error", c.message}, true
	}
	if strings.Contains(c.text, "code = ResourceExhausted") {
		return finding{verdict.ClassCapacity, "the server is full", c.message}, true
	}
	if _, ok := engineRule.match(c.text, lower); ok {
		return finding{engineRule.class, engineRule.name, c.message}, true
	}
	if _, ok := lateRule.match(c.text, lower); ok {
		return finding{lateRule.class, lateRule.name, c.message}, true
	}
	if ended.MatchString(c.text) {
		return finding{verdict.ClassTimeout, lateRule.name, c.message}, true
	}
	if byTest.MatchString(c.text) && ownFile.MatchString(c.text) {
		return finding{}, false
	}
	if foreign.MatchString(c.text) {
		return finding{verdict.ClassEngine, "a program ended with an error of its own", c.message}, true
	}
	return finding{}, false
}

// excuses reports whether a recorded failure of the machine stands beside a failure of the product,
// which then counts.
func excuses(output, lower string, cause cause) bool {
	if _, ok := crash(output); ok || cause.comparison {
		return true
	}
	for _, r := range anywhere {
		if _, ok := r.match(output, lower); ok && r.class != verdict.ClassLeak {
			return true
		}
	}
	return false
}

// match returns the line of text in which the rule found something.
func (r rule) match(text, lower string) (line string, ok bool) {
	for _, want := range r.any {
		if i := strings.Index(lower, want); i >= 0 {
			if len(lower) != len(text) { // a letter whose case changes its length: the place is not known
				return "", true
			}
			from := strings.LastIndexByte(text[:i], '\n') + 1
			line, _, _ = strings.Cut(text[from:], "\n")
			return strings.TrimSpace(line), true
		}
	}
	return "", false
}

var (
	panicLine = regexp.MustCompile(`(?m)^(?:\s*)(panic: .*|fatal error: .*|SIG[A-Z]+: .*|unexpected fault address .*|\[PANICKED\] .*)$`)
	// shutdownOnly is a fixture's message when its engine's Shutdown failed and every proof held.
	shutdownOnly = regexp.MustCompile(` is not gone: 1 of \d+ checks failed .*\n\s*shutdown \(after`)
	frameLine    = regexp.MustCompile(`(?m)^\s*(\S+)\(.*\)\n\s+(\S+\.go):\d+`)
)

// tooSlow is what it says of a server that had to be killed.
var tooSlow = regexp.MustCompile(`did not end on SIG\w+ within`)

// outlived is what a server's fixture says of a process that the server left behind.
const outlived = "outlived the command"

// A crashed is what crash found; raised is the text of a panic that test code raised with a value of
// its own.
type crashed struct {
	finding
	raised string
}

// crash finds a panic, a runtime error, a data race or go test's own timeout.
func crash(output string) (crashed, bool) {
	found := func(class verdict.Class, evidence, message string) (crashed, bool) {
		return crashed{finding: finding{class, evidence, message}}, true
	}
	if i := strings.Index(output, "panic: test timed out after "); i >= 0 {
		line, rest, _ := strings.Cut(output[i:], "\n")
		return found(verdict.ClassTimeout, "go test -timeout", line+running(rest))
	}
	if i := strings.Index(output, "panic: Log in goroutine after "); i >= 0 {
		line, _, _ := strings.Cut(output[i:], "\n")
		return found(verdict.ClassLeak, "a goroutine outlived its test", line)
	}
	if i := strings.Index(output, "WARNING: DATA RACE"); i >= 0 {
		class, where := owner(output[i:])
		return found(class, "the race detector", "data race"+at(where))
	}
	m := panicLine.FindStringIndex(output)
	if m == nil {
		return crashed{}, false
	}
	line := strings.TrimSpace(output[m[0]:m[1]])
	line = strings.TrimSuffix(strings.TrimSuffix(line, " [recovered]"), " [recovered, repanicked]")
	if strings.HasPrefix(line, "fatal error: ") && strings.Contains(line, "memory") &&
		!strings.Contains(line, "address") {
		return found(verdict.ClassCapacity, "the Go runtime", line)
	}
	if strings.Contains(line, "blocked goroutines remain") {
		return found(verdict.ClassLeak, "a goroutine outlived its bubble", line)
	}
	trace := output[m[1]:]
	if !strings.Contains(trace, "goroutine ") && !strings.Contains(trace, ".go:") {
		return crashed{}, false // a line that only looks like one
	}
	switch {
	case strings.HasPrefix(line, "SIGQUIT"):
		return found(verdict.ClassTimeout, "its stacks were asked for", line)
	case strings.HasPrefix(line, "SIG"):
		return found(verdict.ClassEngine, "a crash outside of Go", line)
	}
	class, where := owner(trace)
	c := crashed{finding: finding{class, "a crash" + at(where), line}}
	if value, ok := strings.CutPrefix(line, "panic: "); ok && !strings.HasPrefix(value, "runtime error: ") {
		rest, _, _ := strings.Cut(trace, "\n\n")
		c.raised = value + rest
	}
	return c, true
}

// owner returns the class of a stack trace by its first frame outside of the Go runtime: test code
// or anything else.
func owner(trace string) (class verdict.Class, where string) {
	for _, m := range frameLine.FindAllStringSubmatch(trace, 64) {
		file := m[2]
		if standard(m[1], file) {
			continue
		}
		if strings.HasSuffix(file, "_test.go") || strings.Contains(file, "/testify") ||
			strings.Contains(file, "/gomega") {
			return verdict.ClassTest, file
		}
		return verdict.ClassEngine, file
	}
	return verdict.ClassTest, ""
}

// standard reports whether a function is of Go's own library, whose panics are its caller's
// mistakes: its file lies in a folder src under its package's path, or has that path alone in a
// build with -trimpath.
func standard(function, file string) bool {
	dir, name := function[:strings.LastIndexByte(function, '/')+1], function[strings.LastIndexByte(function, '/')+1:]
	name, _, _ = strings.Cut(name, ".")
	pkg := dir + name
	if function == "panic" {
		pkg = "runtime"
	}
	first, _, _ := strings.Cut(pkg, "/")
	return !strings.Contains(first, ".") && (strings.Contains(file, "/src/"+pkg+"/") ||
		strings.HasPrefix(file, pkg+"/"))
}

func at(where string) string {
	if where == "" {
		return ""
	}
	return " in " + where[strings.LastIndexByte(where, '/')+1:]
}

// running returns the tests that a timeout names: "; running: TestA (9m58s)".
func running(rest string) string {
	_, list, ok := strings.Cut(rest, "running tests:\n")
	if !ok {
		return ""
	}
	line, _, _ := strings.Cut(list, "\n")
	return "; running: " + strings.TrimSpace(line)
}

// deviceHeld decides a wait for device memory: a leak when this process or one of its family holds
// it, else another's use of the machine.
func deviceHeld(output string) (finding, bool) {
	i := strings.Index(output, "gpuwait: ")
	if i < 0 || !strings.Contains(output[i:], " still holds ") {
		return finding{}, false
	}
	line, rest, _ := strings.Cut(output[i:], "\n")
	for _, own := range []string{"this process", "child of this", "orphan"} {
		if strings.Contains(rest, own) {
			return finding{verdict.ClassLeak, "device memory held by " + own, line}, true
		}
	}
	return finding{verdict.ClassCapacity, "device memory held by others", line}, true
}

func orElse(s, other string) string {
	if s != "" {
		return s
	}
	return other
}
