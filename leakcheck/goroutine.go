package leakcheck

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/enginetest/enginetest/leakcheck/internal/retain"
)

// goroutine is one block of a full stack dump.
type goroutine struct {
	id      int64
	state   string // "chan receive", "select (no cases)"
	since   string // "3 minutes", or ""
	labels  string
	leaked  bool    // the runtime's leak profile says that it can never run again
	frames  []frame // innermost first, the runtime's own left out
	creator frame
	why     string // the evidence that it is a scope's whose label it lacks
}

type frame struct{ fn, file, line string }

func (f frame) String() string {
	if f.file == "" {
		return f.fn
	}
	return fmt.Sprintf("%s %s:%s", f.fn, shortPath(f.file), f.line)
}

// shortPath keeps the last folder and the file: "llm/runner.go".
func shortPath(file string) string {
	return filepath.ToSlash(filepath.Join(filepath.Base(filepath.Dir(file)), filepath.Base(file)))
}

var godebug sync.Mutex

// stacks dumps all goroutines, with labels in the headers.
func stacks() []goroutine {
	godebug.Lock()
	defer godebug.Unlock()
	old, had := os.LookupEnv("GODEBUG")
	if !strings.Contains(old, "tracebacklabels=") { // the runtime follows changes of this setting
		os.Setenv("GODEBUG", strings.TrimPrefix(old+",tracebacklabels=1", ","))
		defer func() {
			if had {
				os.Setenv("GODEBUG", old)
			} else {
				os.Unsetenv("GODEBUG")
			}
		}()
	}
	return parseStacks(allStacks())
}

func parseStacks(text []byte) []goroutine {
	var out []goroutine
	for block := range bytes.SplitSeq(text, []byte("\n\n")) {
		lines := strings.Split(strings.TrimSpace(string(block)), "\n")
		if g, ok := parseHeader(lines[0]); ok {
			g.parseFrames(lines[1:])
			out = append(out, g)
		}
	}
	return out
}

// parseHeader reads `goroutine 20 [chan receive (leaked), 3 minutes, locked to thread] {k: v}:`, or
// before Go 1.27 `goroutine 20 [chan receive, 3 minutes labels:{"k": "v"}]:`.
func parseHeader(line string) (g goroutine, ok bool) {
	rest, ok := strings.CutPrefix(line, "goroutine ")
	if !ok {
		return g, false
	}
	id, rest, ok := strings.Cut(rest, " [")
	if g.id, _ = strconv.ParseInt(strings.Fields(id)[0], 10, 64); !ok || g.id == 0 {
		return g, false
	}
	if i := strings.Index(rest, "] {"); i >= 0 {
		rest, g.labels = rest[:i], rest[i+2:]
	} else if i := strings.Index(rest, " labels:{"); i >= 0 {
		rest, g.labels = rest[:i], rest[i:]
	}
	rest = strings.TrimSuffix(rest, "]:")
	parts := strings.Split(rest, ", ")
	g.state, g.leaked = strings.CutSuffix(parts[0], " (leaked)")
	for _, p := range parts[1:] {
		if strings.HasSuffix(p, "minutes") {
			g.since = p
		}
	}
	return g, true
}

func (g *goroutine) parseFrames(lines []string) {
	for i := 0; i < len(lines); i += 2 {
		fn, created := strings.CutPrefix(lines[i], "created by ")
		if created {
			fn, _, _ = strings.Cut(fn, " in goroutine ")
		} else if j := strings.LastIndexByte(fn, '('); j > 0 {
			fn = fn[:j]
		}
		f := frame{fn: fn}
		if i+1 < len(lines) {
			pos, _, _ := strings.Cut(strings.TrimSpace(lines[i+1]), " +0x")
			if j := strings.LastIndexByte(pos, ':'); j > 0 {
				f.file, f.line = pos[:j], pos[j+1:]
			}
		}
		switch {
		case created:
			g.creator = f
		case !strings.HasPrefix(fn, "runtime.") && !strings.HasPrefix(fn, "runtime/"):
			g.frames = append(g.frames, f)
		}
	}
}

// leftovers describes the goroutines of the scope, alike ones together.
func (s *Scope) leftovers(waited time.Duration) error {
	old := getLabels()
	setLabels(nil)
	defer setLabels(old)
	all, certain := provenStacks()
	left := s.kin.left(s)
	for i, g := range left {
		left[i].leaked = slices.ContainsFunc(all, func(o goroutine) bool { return o.id == g.id && o.leaked })
	}
	for _, g := range all {
		if marked(g.labels) && strings.Contains(g.labels, s.mark) && !processWide(g.String()) {
			left = append(left, g)
		}
	}
	return s.report(left, certain, fmt.Sprintf("still running %s after the end", round(waited)))
}

// report describes goroutines, alike ones together.
func (s *Scope) report(left []goroutine, certain bool, state string) error {
	groups := map[string][]goroutine{}
	var order []string
	slices.SortStableFunc(left, func(a, b goroutine) int { return cmp.Compare(a.why, b.why) }) // labelled first
	for _, g := range left {
		key := fmt.Sprint(g.state, g.frames, g.creator, g.why)
		if groups[key] == nil {
			order = append(order, key)
		}
		groups[key] = append(groups[key], g)
	}
	var fs []Finding
	for _, key := range order {
		g := groups[key][0]
		f := finding(groups[key])
		f.Text = fmt.Sprintf("%s: %d of %d goroutine(s) %s: %s", s.name, len(groups[key]), len(left), state, f.Text)
		if f.Note == "" && certain {
			f.Note = "the goroutine leak profile does not call it certain: something that is still reachable could wake it"
		}
		f.Inferred = g.why == inferred
		if g.why != "" {
			f.Note = strings.TrimSuffix("it lacks the scope's label (replaced, or a timer, a cleanup or an older goroutine started it); attributed "+g.why+"\n"+f.Note, "\n")
		}
		fs = append(fs, f)
	}
	return newError(fs, s.cfg.allow)
}

// certainLeaks asks the runtime's goroutine leak profile, where there is one, for goroutines that
// no other evidence has shown: new ones that nothing can ever wake, while nothing else ran.
func (s *Scope) certainLeaks() error {
	if !s.kin.judgeable(s) {
		return nil
	}
	all, certain := provenStacks()
	if !certain {
		return nil
	}
	var left []goroutine
	for _, g := range all {
		if g.leaked && s.kin.new(g.id) && (!marked(g.labels) || strings.Contains(g.labels, s.mark)) {
			g.why = inferred
			left = append(left, g)
		}
	}
	return s.report(left, true, "can never run again")
}

var plumbing = regexp.MustCompile(`^(internal/|sync\.|sync/|time\.|syscall\.|net\.|os\.|io\.|bufio\.|context\.|reflect\.|crypto/tls\.|golang\.org/x/sys/)`)

// where is the innermost function that says what the goroutine does: many wait in internal/poll or
// sync.
func (g *goroutine) where() frame {
	for _, f := range g.frames {
		if !plumbing.MatchString(f.fn) {
			return f
		}
	}
	if n := len(g.frames); n > 0 {
		return g.frames[n-1]
	}
	return frame{fn: "?"}
}

// finding describes goroutines that stand at the same place.
func finding(gs []goroutine) Finding {
	g := gs[0]
	top := g.where()
	state := g.state
	if g.since != "" {
		state += ", for " + g.since
	}
	f := Finding{Kind: KindGoroutine, Name: fmt.Sprintf("goroutine %d", g.id), Signature: "goroutine: " + top.fn}
	f.Text = fmt.Sprintf("goroutine %d [%s] in %s", g.id, state, top)
	if len(gs) > 1 {
		f.Text += fmt.Sprintf(" and %d like it", len(gs)-1)
	}
	var b strings.Builder
	for _, fr := range g.frames[:min(len(g.frames), 12)] {
		fmt.Fprintln(&b, fr)
	}
	if more := len(g.frames) - 12; more > 0 {
		fmt.Fprintf(&b, "… %d more\n", more)
	}
	if g.creator.fn != "" {
		f.Signature += " created by " + g.creator.fn
		fmt.Fprintln(&b, "created by", g.creator)
	}
	f.Detail, f.cause = b.String(), g.library()
	if g.leaked {
		f.Note = "certain: the goroutine leak profile proves that it can never run again"
	}
	return f
}

// provenStacks dumps all goroutines after the runtime has looked for those that can never run again,
// where this Go can.
func provenStacks() (all []goroutine, certain bool) {
	if certain = retain.LeakProfile(func() { all = stacks() }); !certain {
		all = stacks()
	}
	return all, certain
}
