package checkpoint

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// Error is anything wrong with a checkpoint. Its message reads
//
//	checkpoint: FILE: tensor "NAME": FIELD: REASON: got GOT, want WANT
//
// with the parts that apply. Test for it with errors.As; Unwrap gives the system's error when there
// is one (fs.ErrNotExist, …).
type Error struct {
	File   string // path of the file, or of the folder when no single file is at fault
	Tensor string // the tensor's name, when the error concerns one
	Field  string // the JSON field, dotted: "rope_parameters.rope_type"
	Reason string // what is wrong
	Got    string // what the file has
	Want   string // what is accepted
	Err    error  // the cause, when it came from below
}

func (e *Error) Error() string {
	parts := []string{"checkpoint"}
	if e.File != "" {
		parts = append(parts, e.File)
	}
	if e.Tensor != "" {
		parts = append(parts, fmt.Sprintf("tensor %q", clip(e.Tensor)))
	}
	if e.Field != "" {
		parts = append(parts, clip(e.Field))
	}
	if e.Reason != "" {
		parts = append(parts, e.Reason)
	}
	var bounds []string
	if e.Got != "" {
		bounds = append(bounds, "got "+clip(e.Got))
	}
	if e.Want != "" {
		bounds = append(bounds, "want "+e.Want)
	}
	if len(bounds) > 0 {
		parts = append(parts, strings.Join(bounds, ", "))
	}
	if e.Err != nil {
		parts = append(parts, e.Err.Error())
	}
	return printable(strings.Join(parts, ": "))
}

// printable escapes what a file could do to a terminal.
func printable(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsControl(r) {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// clip bounds text that comes from a file, so that a hostile one cannot fill a log.
func clip(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + fmt.Sprintf("… (%d bytes)", len(s))
}
