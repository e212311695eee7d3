package report

import (
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/enginetest/enginetest/verdict"
)

// The limits of GitHub: a step summary holds 1 MiB, a step shows 10 annotations of each level.
const (
	maxSummary     = 900 << 10
	maxAnnotations = 10
)

// WriteMarkdown writes a summary for $GITHUB_STEP_SUMMARY or a comment: the result, a table of
// classes, and each failure with its output folded. It stays within what GitHub accepts and says
// what it left out.
func (r *Report) WriteMarkdown(w io.Writer) error {
	b := &strings.Builder{}
	mark := map[Result]string{ResultPass: "✅", ResultFail: "❌", ResultIncomplete: "⚠️"}[r.Result]
	fmt.Fprintf(b, "### %s %s: %s, %d passed, %d failed, %d skipped\n\n", mark, orElse(r.Name, string(r.Result)),
		number(r.Counts.Tests, "test"),
		r.Counts.Passed, r.Counts.Failed, r.Counts.Skipped)
	for _, why := range r.Why {
		fmt.Fprintf(b, "- %s\n", why)
	}
	if r.Counts.Failed > 0 {
		b.WriteString("\n| class | failures |\n|---|---|\n")
		for _, class := range verdict.Classes() {
			if n := r.Counts.ByClass[class]; n > 0 {
				fmt.Fprintf(b, "| %s | %d |\n", class, n)
			}
		}
	}
	left := 0
	for _, g := range r.groups() {
		for _, t := range g.tests {
			part := t.markdown()
			if b.Len()+len(part) > maxSummary {
				left++
				continue
			}
			b.WriteString(part)
		}
	}
	if left > 0 {
		fmt.Fprintf(b, "\n… and %s more, too many for a step summary.\n", number(left, "failure"))
	}
	r.markdownRest(b)
	_, err := io.WriteString(w, b.String())
	return err
}

func (t *Test) markdown() string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "\n<details><summary><b>%s</b> %s%s</summary>\n\n", t.Class, escape(t.ID()), escape(notes(t)))
	if t.Message != "" {
		fmt.Fprintf(b, "%s\n\n", escape(t.Message))
	}
	if t.Repro != "" {
		fmt.Fprintf(b, "%s\n\n", fence("sh", t.Repro))
	}
	out := t.Output
	if len(out) > 8<<10 {
		out = "…" + strings.ToValidUTF8(out[len(out)-8<<10:], "")
	}
	fmt.Fprintf(b, "%s\n</details>\n", fence("", out))
	return b.String()
}

func (r *Report) markdownRest(b *strings.Builder) {
	var skips, retried []string
	for i := range r.Tests {
		t := &r.Tests[i]
		if t.Status == StatusSkip && t.Class == verdict.ClassCapacity {
			skips = append(skips, fmt.Sprintf("- %s: %s\n", escape(t.ID()), escape(t.Message)))
		}
		for _, a := range t.Attempts {
			if t.Status == StatusPass && a.Status.Failed() {
				retried = append(retried, fmt.Sprintf("- %s: %s, %s\n", escape(t.ID()), a.Class, escape(a.Message)))
			}
		}
	}
	for _, part := range []struct {
		title string
		lines []string
	}{{"Not tested for lack of capacity", skips}, {"Passed only when run again", retried}} {
		if len(part.lines) == 0 || b.Len() > maxSummary {
			continue
		}
		fmt.Fprintf(b, "\n**%s** (%d)\n\n%s", part.title, len(part.lines),
			strings.Join(part.lines[:min(50, len(part.lines))], ""))
	}
}

// fence puts text in a block of code that no backticks in it can end.
func fence(lang, text string) string {
	marks := "```"
	for strings.Contains(text, marks) {
		marks += "`"
	}
	return marks + lang + "\n" + strings.TrimRight(stripEscapes(text), "\n") + "\n" + marks + "\n"
}

var markdown = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "|", "\\|", "*", "\\*", "_", "\\_", "`",
	"\\`", "\n", " ", "[", "\\[")

func escape(s string) string { return markdown.Replace(stripEscapes(s)) }

var escapes = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|[\x00-\x08\x0b\x0c\x0e-\x1f]`)

// stripEscapes removes what steers a terminal.
func stripEscapes(s string) string { return escapes.ReplaceAllString(s, "") }

var location = regexp.MustCompile(`(?m)^\s*(?:Error Trace:\s*)?([\w.@/+-]+\.go):(\d+)`)

// WriteAnnotations writes GitHub's workflow commands: one error per failure, a warning per class
// that is the machine's. dir maps the import path of a package to its folder in the repository; nil
// leaves the files out.
func (r *Report) WriteAnnotations(w io.Writer, dir func(pkg string) string) error {
	count := map[string]int{}
	for _, g := range r.groups() {
		for _, t := range g.tests {
			level := "error"
			if t.Class.Retryable() || t.Quarantine != nil {
				level = "warning"
			}
			if count[level]++; count[level] > maxAnnotations {
				continue
			}
			where := ""
			if m := location.FindStringSubmatch(t.Output); m != nil && dir != nil {
				file := m[1]
				if !strings.Contains(file, "/") {
					file = strings.TrimPrefix(dir(t.Package)+"/"+file, "/")
				}
				where = fmt.Sprintf("file=%s,line=%s,", property(file), m[2])
			}
			text := t.Message
			if t.Repro != "" {
				text += "\nto reproduce: " + t.Repro
			}
			if _, err := fmt.Fprintf(w, "::%s %stitle=%s::%s\n", level, where,
				property(fmt.Sprintf("%s: %s", t.Class, t.ID())), data(text)); err != nil {
				return err
			}
		}
	}
	return nil
}

// data and property escape text for a workflow command.
func data(s string) string {
	return strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A").Replace(stripEscapes(s))
}

func property(s string) string {
	return strings.NewReplacer(":", "%3A", ",", "%2C").Replace(data(s))
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
