package report

import (
	"strconv"
	"strings"
)

// textParser turns the text of "go test -v", or of a test binary, into events. The name of the
// package comes at its end, so its events are held until then.
type textParser struct {
	emit    func(event)
	pkg     string // for a binary's own output, which has no such line
	pending []event
	current string
	builds  string // the package whose build output comes now
	bare    string // how a binary's own output says that it ended
	named   bool   // a line named a package: the text is that of go test
}

func (p *textParser) line(raw string) {
	text := strings.TrimRight(strings.TrimPrefix(raw, "\x16"), "\r\n")
	if p.marker(text) || p.trailer(text) {
		return
	}
	if path, ok := strings.CutPrefix(text, "# "); ok && !strings.Contains(path, ": ") && p.current == "" {
		p.builds, _, _ = strings.Cut(path, " ")
	}
	if p.builds != "" {
		p.emit(event{Action: "build-output", ImportPath: p.builds, Output: raw})
		return
	}
	p.add(event{Action: "output", Test: p.current, Output: raw})
}

func (p *textParser) add(e event) { p.pending = append(p.pending, e) }

// marker takes the lines with which a test binary says what happens.
func (p *textParser) marker(text string) bool {
	if rest, ok := strings.CutPrefix(text, "=== "); ok {
		action, rest, _ := strings.Cut(rest, " ")
		rest = strings.TrimSpace(rest)
		name, tail, _ := strings.Cut(rest, " ")
		switch action {
		case "RUN":
			p.builds, p.current = "", rest
			p.add(event{Action: "run", Test: rest})
		case "CONT", "NAME", "PAUSE":
			p.current = rest
		case "ATTR":
			key, value, _ := strings.Cut(tail, " ")
			p.add(event{Action: "attr", Test: name, Key: key, Value: value})
		case "ARTIFACTS":
		default:
			return false
		}
		return true
	}
	rest, ok := strings.CutPrefix(strings.TrimLeft(text, " "), "--- ")
	if !ok {
		return false
	}
	action, rest, ok := strings.Cut(rest, ": ")
	i := strings.LastIndex(rest, " (")
	if !ok || i < 0 || !strings.HasSuffix(rest, "s)") || !strings.Contains(" PASS FAIL SKIP BENCH ", " "+action+" ") {
		return false
	}
	p.builds, p.current = "", rest[:i]
	elapsed, _ := strconv.ParseFloat(rest[i+2:len(rest)-2], 64)
	p.add(event{Action: "output", Test: p.current, Output: text + "\n"})
	p.add(event{Action: strings.ToLower(action), Test: p.current, Elapsed: elapsed})
	return true
}

// trailer takes the lines that end a package: "ok  \tpkg\t0.1s", "FAIL\tpkg [build failed]", "?
// \tpkg\t[no test files]", and the bare PASS and FAIL of a binary.
func (p *textParser) trailer(text string) bool {
	switch text {
	case "PASS", "FAIL":
		p.bare, p.current = strings.ToLower(text), ""
		return true
	}
	word, rest, tabbed := strings.Cut(text, "\t")
	if !tabbed {
		return false
	}
	action, ok := map[string]string{"ok": "pass", "FAIL": "fail", "?": "skip", "---": ""}[strings.TrimSpace(word)]
	if !ok {
		return false
	}
	name, after, _ := strings.Cut(rest, "\t")
	name, note, _ := strings.Cut(name, " ")
	if name == "" || strings.ContainsAny(name, ":\"") {
		return false
	}
	e := event{Action: action}
	if strings.Contains(note, "build failed") || strings.Contains(note, "setup failed") {
		e.FailedBuild = name
	}
	fields := strings.Fields(after)
	if len(fields) > 0 {
		e.Elapsed, _ = strconv.ParseFloat(strings.TrimSuffix(fields[0], "s"), 64)
	}
	if strings.Contains(after, "(cached)") {
		p.add(event{Action: "output", Output: "(cached)\n"})
	}
	p.add(e)
	p.named = true
	p.flush(name)
	return true
}

func (p *textParser) flush(pkg string) {
	for _, e := range p.pending {
		e.Package = pkg
		p.emit(e)
	}
	p.pending, p.current, p.builds, p.bare = nil, "", "", ""
}

func (p *textParser) end() {
	if p.bare != "" && !p.named {
		p.add(event{Action: p.bare})
	}
	p.flush(p.pkg)
}
