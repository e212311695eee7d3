package harness

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// hangGrace is how long a call may go on after its context has ended.
const hangGrace = time.Second

// hang is a call of an engine's method that goes on though its context has ended.
type hang struct {
	state string // of its goroutine: "chan receive"
	in    string // the engine's function that waits: "llm.(*Engine).poll llm/engine.go:88"
	on    string // what that function called: "sync.(*Mutex).Lock"; "" when it runs
	stack string
}

// String says where the call waits.
func (h *hang) String() string {
	switch {
	case h.in == "":
		return "its goroutine was not found"
	case h.on == "":
		return fmt.Sprintf("it is in %s [%s]", h.in, h.state)
	}
	return fmt.Sprintf("it waits for %s in %s [%s]", h.on, h.in, h.state)
}

// of is the error of a call with ctx: of open, or of a method of an engine's type.
func (h *hang) of(ctx context.Context, what string) error {
	return fmt.Errorf("%s has not returned %s after its context ended (%w): %v\n%s", what, hangGrace,
		context.Cause(ctx), h, h.stack)
}

// within calls f in a goroutine of its own, and leaves it behind when it has not returned a second
// after the context ended. A panic of f, or its Goexit, goes on in the caller.
func within(ctx context.Context, f func()) *hang {
	call := guarded{id: make(chan int64, 1), done: make(chan struct{})}
	go call.run(f)
	select {
	case <-call.done:
	case <-ctx.Done():
		grace := time.NewTimer(hangGrace)
		defer grace.Stop()
		select {
		case <-call.done:
		case <-grace.C:
			return findHang(<-call.id)
		}
	}
	switch {
	case call.panicked != nil:
		panic(call.panicked)
	case !call.returned:
		runtime.Goexit()
	}
	return nil
}

// guarded is one call that within watches.
type guarded struct {
	id       chan int64
	done     chan struct{}
	returned bool
	panicked any
}

func (g *guarded) run(f func()) {
	defer close(g.done)
	defer func() {
		if v := recover(); v != nil {
			g.panicked = &Panic{Value: v, Stack: debug.Stack()}
		}
	}()
	g.id <- goroutineID()
	f()
	g.returned = true
}

// Panic is the value of a panic in an engine's method, which runs in a goroutine of its own.
type Panic struct {
	Value any
	Stack []byte // where it happened
}

// Error prints the value and the stack.
func (p *Panic) Error() string { return fmt.Sprintf("%v\n\n%s", p.Value, p.Stack) }

// Unwrap returns the value when it is an error.
func (p *Panic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

func goroutineID() int64 {
	buf := make([]byte, 64)
	fields := strings.Fields(string(buf[:runtime.Stack(buf, false)]))
	id, _ := strconv.ParseInt(fields[1], 10, 64) // "goroutine 20 [running]:"
	return id
}

// findHang reads where a goroutine waits.
func findHang(id int64) *hang {
	buf := make([]byte, 64<<10)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	head := fmt.Appendf(nil, "goroutine %d [", id)
	for block := range bytes.SplitSeq(buf, []byte("\n\n")) {
		if bytes.HasPrefix(block, head) {
			return parseHang(string(block))
		}
	}
	return &hang{}
}

// parseHang reads one goroutine of a dump: its state, and pairs of lines for function and place.
func parseHang(block string) *hang {
	first, rest, _ := strings.Cut(block, "\n")
	_, state, _ := strings.Cut(first, "[")
	h := &hang{state: strings.TrimSuffix(state, "]:"), stack: block}
	lines := strings.Split(rest, "\n")
	for i := 0; i+1 < len(lines) && !strings.HasPrefix(lines[i], "created by "); i += 2 {
		function := lines[i]
		if end := strings.LastIndexByte(function, '('); end > 0 {
			function = function[:end]
		}
		if waits(function) {
			h.on = function
			continue
		}
		h.in = shortName(function) + " " + shortPlace(lines[i+1])
		break
	}
	return h
}

// waits reports whether a function is one that others wait in, and not the engine's own.
func waits(function string) bool {
	pkg := packageOf(function)
	return pkg == "runtime" || pkg == "sync" || pkg == "time" || pkg == "syscall" || pkg == "context" ||
		strings.HasPrefix(pkg, "internal/") || strings.HasPrefix(pkg, "golang.org/x/sys")
}

// shortName cuts the path of a package: "llm.(*Engine).poll".
func shortName(function string) string { return function[strings.LastIndexByte(function, '/')+1:] }

// shortPlace turns "\t/home/x/llm/engine.go:88 +0x1d" into "llm/engine.go:88".
func shortPlace(line string) string {
	path, _, _ := strings.Cut(strings.TrimSpace(line), " ")
	return filepath.Join(filepath.Base(filepath.Dir(path)), filepath.Base(path))
}
