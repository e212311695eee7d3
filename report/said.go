package report

import (
	"regexp"
	"strings"
)

var (
	// minor is a line of a log that its program did not fail with.
	minor = regexp.MustCompile(`^\W*(\S+\s+){0,3}[\[(]?(WARN(ING)?|INFO|DEBUG|TRACE|NOTICE)[\])]?(:|\s)|^\s*(?i:(npm )?warn(ing)?|info|debug|notice):|^npm warn |` +
		`\[(warn(ing)?|info|debug)\]|\blevel=(?i:warn(ing)?|info|debug|trace)\b|"level": ?"(?i:warn(ing)?|info|debug|trace)"|^[WI]\d{4} \d\d:\d\d`)
	// goesOn is what a program says of an error that it can do without.
	goesOn = regexp.MustCompile(`(?i)\b(retrying|will retry|retry in|trying (the next|again|another)|falling back|fall back|ignoring|continuing|skipping|(is|are|was|were) (ignored|skipped|disabled))\b`)
	// defect is an exception that only a mistake in a program raises.
	defect = regexp.MustCompile(`(?m)^\s*(?:E\s+)?(?:[\w.]+\.)?(KeyError|IndexError|AttributeError|ZeroDivisionError|NameError|UnboundLocalError|AssertionError|` +
		`NotImplementedError|TypeError: [^f]\w+|TypeError: f[^e]\w+|RecursionError|NullPointerException|ClassCastException|\w*IndexOutOfBoundsException|IllegalStateException)\b`)
)

// decided returns the lines of a failure that can be its reason: without those of a lower severity
// and without errors that the program went on after. NCCL calls its errors warnings.
func decided(text string) string {
	var kept []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if (minor.MatchString(line) || goesOn.MatchString(line)) && !strings.Contains(line, "NCCL WARN") {
			continue
		}
		kept = append(kept, line)
	}
	return strings.Join(kept, "\n")
}

// bareEnd is a message that says only that a process has ended.
var bareEnd = regexp.MustCompile(`^[^\n]*\b(exit(ed with)? (status|code) \d+|signal: \w+)\s*$`)

// lastWords returns what a process said last, when the test says only that it has ended: the line
// before the test's message.
func lastWords(output string, c cause) string {
	if !bareEnd.MatchString(strings.TrimSpace(c.text)) {
		return ""
	}
	before, _, ok := strings.Cut(output, c.message)
	if !ok {
		return ""
	}
	lines := strings.Split(strings.TrimRight(before, "\n"), "\n")
	for i := len(lines) - 2; i >= 0; i-- {
		line := strings.TrimSpace(lines[i])
		if line == "" || strings.HasPrefix(line, "Error Trace:") || strings.HasPrefix(line, "/") {
			continue
		}
		if frame(line) || messageLine.MatchString(lines[i]) {
			return ""
		}
		return decided(line)
	}
	return ""
}

var portTaken = regexp.MustCompile(`(?i):(\d{2,5})\b[^\n]*address (?:already )?in use|(?:address already in use|EADDRINUSE)[^\n]*:(\d{2,5})\b`)

// ownPort reports whether the port that an error calls taken is one on which the same output says
// that something listens, and that went on after it said so.
func ownPort(output, text string) bool {
	m := portTaken.FindStringSubmatch(text)
	if m == nil {
		return false
	}
	listens := regexp.MustCompile(`(?i)\b(listening|listens|serving|running|started|ready)\b.*\b` + orElse(m[1], m[2]) + `\b`)
	announced, since := 0, 0
	for line := range strings.Lines(output) {
		switch {
		case portTaken.MatchString(line):
			return announced > 1 || announced == 1 && since > 0
		case listens.MatchString(line):
			announced, since = announced+1, 0
		case announced > 0:
			since++
		}
	}
	return false
}
