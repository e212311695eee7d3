package verdict

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// maxSignature is enough for a package, a type, a method and a message; more is detail.
const maxSignature = 240

// Signature builds a signature from the class and the first line of text. What changes from run to
// run (addresses, ids, numbers, durations, sizes, temporary folders) is replaced, so that two
// failures with the same cause have the same signature.
func Signature(class Class, text string) string {
	return string(class) + ": " + normalize(text)
}

// Normalize returns the first line of text without what changes from run to run.
func normalize(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	for _, r := range replacements {
		line = r.pattern.ReplaceAllString(line, r.by)
	}
	line = strings.Join(strings.Fields(line), " ")
	if len(line) <= maxSignature {
		return line
	}
	cut := maxSignature
	for !utf8.RuneStart(line[cut]) {
		cut--
	}
	return line[:cut] + "…"
}

var replacements = []struct {
	pattern *regexp.Regexp
	by      string
}{
	{regexp.MustCompile(`(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`), "UUID"},
	{regexp.MustCompile(`(/tmp|/var/folders|/dev/shm)/[^\s:"']+`), "$1/…"},
	{regexp.MustCompile(`\b0x[0-9a-fA-F]+\b`), "0x…"},
	{regexp.MustCompile(`\b\d+(\.\d+)?\s?([KMGT]i?B|bytes|B)\b`), "N $2"},
	{regexp.MustCompile(`\b(\d+(\.\d+)?(ns|µs|us|ms|h|m|s))+\b`), "D"},
	{regexp.MustCompile(`\b\d+(\.\d+)?\b`), "N"},
	{regexp.MustCompile(`\b[0-9a-f]{12,}\b`), "HEX"},
}
