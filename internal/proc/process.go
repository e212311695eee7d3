package proc

import (
	"fmt"
	"strings"
	"time"
)

// A Process is one of a family, as it was seen at one moment.
type Process struct {
	PID       int
	Parent    int
	Started   time.Time // to the clock tick, 10 ms
	Command   string    // its command line, shortened
	Escapes   []Escape  // how it left what is usually watched
	Listening []string  // sockets that it listens on: "tcp 127.0.0.1:8080", "unix /tmp/x.sock"

	start int64 // in ticks since boot: with PID, what tells it from every other process
}

// An Escape is a way in which a process gets out of sight of its launcher.
type Escape string

// The escapes.
const (
	EscapeSession     Escape = "setsid"              // in a session of its own
	EscapeGroup       Escape = "own process group"   // in the session, but in another group
	EscapeParent      Escape = "re-parented"         // the process that started it has ended
	EscapeEnvironment Escape = "cleared environment" // without the family's mark
)

// String names the process: "process 4121 (sleep 60; setsid, re-parented), listening on …".
func (p Process) String() string {
	s := fmt.Sprintf("process %d (%s)", p.PID, p.Command)
	if len(p.Escapes) > 0 {
		s += ", " + p.escapes()
	}
	if len(p.Listening) > 0 {
		s += ", listening on " + strings.Join(p.Listening, ", ")
	}
	return s
}

func (p Process) escapes() string {
	words := make([]string, len(p.Escapes))
	for i, e := range p.Escapes {
		words[i] = string(e)
	}
	return strings.Join(words, ", ")
}
