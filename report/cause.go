package report

import (
	"regexp"
	"slices"
	"strings"
)

// A cause is the part of a test's output that made it fail.
type cause struct {
	text       string
	message    string // one line of it, for lists
	comparison bool   // two values differ: what stands in them is data and no error
}

var (
	messageLine = regexp.MustCompile(`^(\s*)([\w.@/+-]+\.go:\d+): ?(.*)$`)
	comparing   = regexp.MustCompile(`(?i)\b(want|expected)\b.*\b(got|actual)\b|\b(got|have)\b.*\bwant\b|\bnot equal\b|` +
		`should (not )?(be|contain|have)|does not contain|^\s*[-+]{3} (expected|actual)|to equal|to contain|\bdiffers? from\b|mismatch \(-want \+got\)`)
)

// causeOf finds it: the blocks of testify, else the last message with a file and a line, else the
// end of the output.
func causeOf(output string) cause {
	if c, ok := testify(output); ok {
		return c
	}
	if c, ok := gomega(output); ok {
		return c
	}
	var last []string
	inside := false
	indent := 0
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, "\r\n")
		if m := messageLine.FindStringSubmatch(line); m != nil {
			last, inside, indent = []string{m[3]}, true, len(m[1])
			continue
		}
		if frame(line) {
			inside = false
			continue
		}
		if inside && (strings.TrimSpace(line) == "" || leading(line) > indent) {
			last = append(last, strings.TrimSpace(line))
			continue
		}
		inside = false
	}
	if last == nil {
		return ending(output)
	}
	text := strings.TrimSpace(strings.Join(last, "\n"))
	return cause{text, firstOf(last), comparing.MatchString(firstOf(last))}
}

// ending is the cause when no line says where it comes from: what was printed last.
func ending(output string) cause {
	var kept []string
	for line := range strings.Lines(output) {
		if line = strings.TrimSpace(line); line != "" && !frame(line) && line != "FAIL" && line != "PASS" {
			kept = append(kept, line)
		}
	}
	if len(kept) == 0 {
		return cause{}
	}
	if len(kept) > 20 {
		kept = kept[len(kept)-20:]
	}
	return cause{text: strings.Join(kept, "\n"), message: kept[len(kept)-1]}
}

var testifyFields = []string{"Error Trace", "Error", "Test", "Messages"}

// testify joins the blocks of its failed assertions.
func testify(output string) (cause, bool) {
	if !strings.Contains(output, "Error Trace:") {
		return cause{}, false
	}
	var text []string
	var c cause
	field := ""
	for line := range strings.Lines(output) {
		trimmed := strings.TrimSpace(line)
		name, value, ok := strings.Cut(trimmed, ":")
		if ok && slices.Contains(testifyFields, name) && strings.HasPrefix(line, "        \t") {
			field, trimmed = name, strings.TrimSpace(value)
		} else if !strings.HasPrefix(line, "        \t ") {
			field = ""
		}
		if field != "Error" && field != "Messages" || trimmed == "" {
			continue
		}
		text = append(text, trimmed)
		c.comparison = c.comparison || comparing.MatchString(trimmed)
	}
	if len(text) == 0 {
		return cause{}, false
	}
	c.text, c.message = strings.Join(text, "\n"), abbreviate(strings.Join(text[:min(4, len(text))], " "), 300)
	return c, true
}

var toBe = regexp.MustCompile(`\n\s*(not )?to `)

// gomega finds "Expected … to …" blocks.
func gomega(output string) (cause, bool) {
	i := strings.Index(output, "Expected\n")
	if i < 0 {
		return cause{}, false
	}
	block := output[i:]
	if j := strings.Index(block, "\n\n"); j >= 0 {
		block = block[:j]
	}
	if !toBe.MatchString(block) {
		return cause{}, false
	}
	fields := strings.Fields(block)
	unexpected := strings.Contains(block, "not to have occurred") || strings.Contains(block, "to succeed")
	return cause{text: block, message: abbreviate(strings.Join(fields, " "), 300), comparison: !unexpected}, true
}

// frame reports whether a line is one of the test binary's own.
func frame(line string) bool {
	line = strings.TrimLeft(strings.TrimPrefix(line, "\x16"), " ")
	for _, p := range []string{"=== ", "--- FAIL: ", "--- PASS: ", "--- SKIP: ", "exit status "} {
		if strings.HasPrefix(line, p) && !strings.HasPrefix(line, "exit status 1: ") {
			return true
		}
	}
	return false
}

func leading(s string) int { return len(s) - len(strings.TrimLeft(s, " \t")) }

func firstOf(lines []string) string {
	for _, l := range lines {
		if l = strings.TrimSpace(l); l != "" {
			return l
		}
	}
	return ""
}
