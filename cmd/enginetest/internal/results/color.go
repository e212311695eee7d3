package results

import (
	"io"
	"os"

	"golang.org/x/term"
)

// Color reports whether output to w should be coloured: w is a terminal and NO_COLOR is not set.
func Color(w io.Writer) bool { return os.Getenv("NO_COLOR") == "" && Terminal(w) }

// Terminal reports whether w is a terminal that understands escape sequences.
func Terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
}
