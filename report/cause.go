package report

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A cause is the part of a test's output that made it fail.
type cause struct {
	text       string
	message    string // one line of it, for lists
	comparison bool   // an expectation is told: what stands in it is data and no error
	mixed      bool   // an expectation is told beside it
}

var (
	messageLine = regexp.MustCompile(`^(\s*)([\w.@/+-]+\.go:\d+): ?(.*)$`)
	comparing   = regexp.MustCompile(`(?i)\bwant(ed|s|Err)?\b|\bgot\b.*\b(have|instead)\b|\binstead of\b|\bexpected\b|` +
		`\bshould (not )?(be|contain|have)\b|\b(does not|doesn't) (contain|match)|\bnot equal\b|\blacks\b|\bsucceeded\b|` +
		`\bto (equal|contain|match)\b|\w\)? != \S|^assertion failed: |\bdiffers? from\b|^\s*[-+]{3} \S|^@@ |^[-+]\s\s*\S.*[,"]$|mismatch \(-want \+got\)|\bno error\b|` +
		`\bwithin\b.*\bof\b|\b(below|above|exceeds|more than|less than) the\b|^assert\b|AssertionError\b.*\b(==|!=|in|is)\b`)
	// unexpected are messages that name an error by what was expected in its place, and those of
	// this module, which say what is wanted.
	unexpected = regexp.MustCompile(`(?im)^\s*(gpuwait|leakcheck|forkproc|server|harness|runner): |unexpected error|expected nil, but got: &?[\w.*]*(err|errno)|not to have occurred|^([\w .]+: )?rpc error: code = |` +
		`to succeed|\bdid not start: |wantErr (false|nil)|expected no error|error is not nil|wrong type of error|non-nil error|expected success`)
	// back is a message that points to what the test has logged before.
	back   = regexp.MustCompile(`(?i)\b(see|as) (the )?(\w+ )?(above|before)\b|\babove\b`)
	colors = regexp.MustCompile("\x1b\\[[0-9;]*m")
	quoted = regexp.MustCompile(`(^|[\s(\[])"(?:[^"\\\n]|\\.)*"` + "|(^|[\\s(\\[])`[^`\n]*`|(^|[\\s(\\[])'[^'\n]*'")
)

// causeOf finds it: the blocks of testify and gomega, else the last message with a file and a line,
// else the end of the output.
func causeOf(output string) cause {
	if c, ok := specs(output); ok {
		return c
	}
	if c, ok := testify(output); ok {
		return c
	}
	if c, ok := gomega(output); ok {
		return c
	}
	list := slices.DeleteFunc(messages(output), func(c cause) bool {
		return c.text != "" && strings.TrimSpace(decided(c.text)) == ""
	})
	if len(list) == 0 {
		return ending(output)
	}
	last := list[len(list)-1]
	if _, ok := program(last); len(list) > 1 && !ok && back.MatchString(last.message) {
		last.text = list[len(list)-2].text + "\n" + last.text
	}
	last.mixed = slices.ContainsFunc(list, func(c cause) bool { return c.comparison })
	return last
}

// messages returns what a test logged, each with the lines that belong to it.
func messages(output string) (list []cause) {
	var lines []string
	inside, indent := false, 0
	end := func() {
		if lines != nil {
			list = append(list, told(lines))
		}
		lines = nil
	}
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, "\r\n")
		if m := messageLine.FindStringSubmatch(line); m != nil && (lines == nil || len(m[1]) <= indent) {
			if strings.HasPrefix(m[3], "TempDir RemoveAll cleanup: ") && len(list)+len(lines) > 0 {
				inside = false // it comes after the test's own failure
				continue
			}
			end()
			lines, inside, indent = []string{m[3]}, true, len(m[1])
			continue
		}
		if frame(line) {
			inside = false
			continue
		}
		if inside && (strings.TrimSpace(line) == "" || leading(line) > indent) {
			lines = append(lines, strings.TrimSpace(line))
			continue
		}
		inside = false
	}
	end()
	return list
}

// told makes a cause of the lines of one message.
func told(lines []string) cause {
	c := cause{text: strings.TrimSpace(strings.Join(lines, "\n")), message: firstOf(lines)}
	c.comparison = compares(c.text)
	return c
}

// compares reports whether a message tells of an expectation: its first lines do. The rest may be
// the log of a program.
func compares(text string) bool {
	if unexpected.MatchString(text) {
		return false
	}
	seen := 0
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if comparing.MatchString(line) && !strings.Contains(line, "exit status ") {
			return true
		}
		if seen++; seen == 3 {
			break
		}
	}
	return false
}

// errors is the text without what a message quotes: an error is not put in quotes by the one who
// reports it, but a value is.
func (c cause) errors() string {
	return quoted.ReplaceAllString(field.ReplaceAllString(c.text, "$1: "), "$1$2$3")
}

// field is a quoted error of a structure: Rust and gRPC print them so.
var field = regexp.MustCompile(`\b(err|error|msg|message|desc|cause|reason) ?[:=] ?"`)

// logged is the value of a logfmt line, or of a dumped error, whose line breaks are escaped.
var logged = regexp.MustCompile(`\b(msg|err|error)(?:=|: )"(?:[^"\\\n]|\\.)*\\n(?:[^"\\\n]|\\.)*"`)

// ending is the cause when no line says where it comes from: what was printed last.
func ending(output string) cause {
	var kept []string
	for line := range strings.Lines(output) {
		if line = strings.TrimSpace(line); line != "" && !frame(line) && line != "FAIL" && line != "PASS" &&
			!strings.HasPrefix(line, "FAIL\t") {
			kept = append(kept, line)
		}
	}
	if len(kept) == 0 {
		return cause{}
	}
	if len(kept) > 20 {
		kept = kept[len(kept)-20:]
	}
	text := strings.Join(kept, "\n")
	c := cause{text: text, message: kept[len(kept)-1]}
	c.comparison = foreignExpectation.MatchString(text) && !strings.Contains(text, "Traceback (most")
	return c
}

// foreignExpectation is how pytest and GoogleTest begin the message of an expectation.
var foreignExpectation = regexp.MustCompile(`(?m)^(E\s+)?assert |^AssertionError|^Expected equality of|^Expected: |` +
	`^Value of: |^The difference between |Failed: DID NOT RAISE|^got:\n(?s:.*)^want:`)

var testifyFields = []string{"Error Trace", "Error", "Test", "Messages"}

// testify joins the blocks of its failed assertions.
func testify(output string) (cause, bool) {
	if !strings.Contains(output, "Error Trace:") {
		return cause{}, false
	}
	var blocks []string // one per assertion
	field := ""
	for line := range strings.Lines(output) {
		trimmed := strings.TrimSpace(line)
		name, value, ok := strings.Cut(trimmed, ":")
		if ok && slices.Contains(testifyFields, name) && strings.HasPrefix(line, "        \t") {
			field, trimmed = name, strings.TrimSpace(value)
		} else if !strings.HasPrefix(line, "        \t ") {
			field = ""
		}
		if field == "Error Trace" && name == field {
			blocks = append(blocks, "")
		}
		if field != "Error" && field != "Messages" || trimmed == "" || len(blocks) == 0 {
			continue
		}
		blocks[len(blocks)-1] += trimmed + "\n"
	}
	var expectations, errors string
	for _, b := range blocks {
		if unexpected.MatchString(b) || strings.Contains(b, "Condition never satisfied") {
			errors += b
		} else {
			expectations += b
		}
	}
	text := strings.TrimSpace(orElse(errors, expectations))
	if text == "" {
		return cause{}, false
	}
	lines := strings.Split(text, "\n")
	message := abbreviate(strings.Join(lines[:min(4, len(lines))], " "), 300)
	polled := strings.Contains(errors, "Condition never satisfied") // its condition's assertions stand before it
	c := cause{text: text, message: message, comparison: errors == ""}
	c.mixed = errors != "" && expectations != "" && !polled
	return c, true
}

var specFailure = regexp.MustCompile(`\n  \[(FAILED|TIMEDOUT)\] `)

// specs finds the first failure of a Ginkgo suite.
func specs(output string) (cause, bool) {
	at := specFailure.FindStringIndex(output)
	if at == nil || !strings.Contains(output, "Running Suite: ") {
		return cause{}, false
	}
	block := output[at[1]:]
	if j := strings.Index(block, "\n  In ["); j >= 0 {
		block = block[:j]
	}
	c := told(strings.Split(block, "\n"))
	timedOut := strings.HasSuffix(output[at[0]:at[1]], "[TIMEDOUT] ")
	if timedOut {
		c.text = "timed out: " + c.text
	}
	c.comparison = !timedOut && !unexpected.MatchString(block)
	c.message = abbreviate(strings.Join(strings.Fields(block), " "), 300)
	return c, true
}

var toBe = regexp.MustCompile(`\n\s*(not )?to `)

// gomega finds "Expected … to …" blocks, and "Timed out" before them.
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
	message := abbreviate(strings.Join(fields, " "), 300)
	before := strings.TrimRight(output[:i], " \t\n")
	if line := strings.TrimSpace(before[strings.LastIndexByte(before, '\n')+1:]); strings.HasPrefix(line,
		"Timed out after ") {
		return cause{text: line, message: line + " " + message}, true
	}
	return cause{text: block, message: message, comparison: !unexpected.MatchString(block)}, true
}

// unstyled takes colors and the escapes of a quoted error out of a text.
func unstyled(output string) string {
	output = colors.ReplaceAllString(output, "")
	if strings.Contains(output, `\n`) {
		output = logged.ReplaceAllStringFunc(output, unescaped)
	}
	if !strings.Contains(output, "xpected nil, but got") && !strings.Contains(output, "got non-nil error") {
		return output
	}
	return strings.NewReplacer(`\n`, "\n        \t            \t", `\"`, `"`, `\t`, "\t").Replace(output)
}

// unescaped breaks the lines of a quoted value.
func unescaped(s string) string {
	i := strings.IndexByte(s, '"')
	if text, err := strconv.Unquote(s[i:]); err == nil {
		return s[:i] + text
	}
	return s
}

// frame reports whether a line is one of the test binary's own.
func frame(line string) bool {
	line = strings.TrimLeft(strings.TrimPrefix(line, "\x16"), " ")
	for _, p := range []string{
		"=== ", "--- FAIL: ", "--- PASS: ", "--- SKIP: ", "exit status ", "signal: killed",
		"signal: terminated",
	} {
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
