package forkproc

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
)

const marker = 0x16 // ^V begins a framing line of -test.v=test2json

// An event is one line of the child's stream.
type event struct {
	// "text", or what a frame says: run, pause, cont, name, attr, artifacts, pass, fail, skip;
	// without a name, the end of the run
	kind  string
	name  string
	text  string // text: the line without its newline; artifacts: the folder
	key   string // attr
	value string // attr
	node  *node  // run: set by the replay
}

// maxLine bounds a line without an end (a progress bar): it is passed on in pieces.
const maxLine = 64 << 10

// readStream calls emit for each line of r until its end, and returns the error that ended it, nil
// for io.EOF.
func readStream(r io.Reader, emit func(event)) error {
	br := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := br.ReadSlice('\n')
		line = bytes.TrimSuffix(line, []byte("\n"))
		// A frame can follow output that has no newline.
		for len(line) > 0 {
			next := nextFrame(line)
			if next < 0 {
				emit(parseLine(string(line)))
				break
			}
			emit(parseLine(string(line[:next])))
			line = line[next:]
		}
		switch {
		case len(line) == 0 && err == nil:
			emit(event{kind: "text"})
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return err
		}
	}
}

var frameStarts = [][]byte{[]byte("=== "), []byte("--- "), []byte("PASS"), []byte("FAIL"), []byte("testing: ")}

// nextFrame finds a frame in line that does not begin it; -1: none.
func nextFrame(line []byte) int {
	for i := 1; i < len(line); i++ {
		if line[i] != marker {
			continue
		}
		for _, start := range frameStarts {
			if bytes.HasPrefix(line[i+1:], start) {
				return i
			}
		}
	}
	return -1
}

func parseLine(line string) event {
	framed, ok := strings.CutPrefix(line, string(rune(marker)))
	if !ok {
		return event{kind: "text", text: line}
	}
	framed = strings.TrimSuffix(framed, "\r")
	text := event{kind: "text", text: framed} // a ^V that means nothing to us
	switch {
	case framed == "PASS" || framed == "FAIL":
		return event{kind: strings.ToLower(framed)}
	case strings.HasPrefix(framed, "--- "):
		verdict, rest, ok := strings.Cut(framed[len("--- "):], ": ")
		end := strings.LastIndex(rest, " (")
		if !ok || end < 0 || verdict != "PASS" && verdict != "FAIL" && verdict != "SKIP" {
			return text
		}
		return event{kind: strings.ToLower(verdict), name: rest[:end]}
	case strings.HasPrefix(framed, "=== "):
		action, rest, _ := strings.Cut(framed[len("=== "):], " ")
		name, rest, _ := strings.Cut(strings.TrimLeft(rest, " "), " ")
		e := event{kind: strings.ToLower(action), name: name}
		switch e.kind {
		case "run", "pause", "cont", "name":
		case "attr":
			e.key, e.value, _ = strings.Cut(rest, " ")
		case "artifacts":
			e.text = rest
		default:
			return text
		}
		return e
	}
	return text
}
