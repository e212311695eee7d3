package engine

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/enginetest/enginetest/engine/internal/wire"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// across sends an error over the wire.
func across(t *testing.T, err error) error {
	t.Helper()
	b, encodeErr := wire.Append(nil, &struct{ E *wireError }{pack(err)})
	require.NoError(t, encodeErr)
	var out struct{ E *wireError }
	require.NoError(t, wire.Decode(b, &out))
	return out.E.unpack()
}

func TestErrorsCross(t *testing.T) {
	assert.NoError(t, across(t, nil))
	for _, known := range crossing {
		got := across(t, fmt.Errorf("a: %w: b", known))
		assert.ErrorIs(t, got, known)
		assert.EqualError(t, got, fmt.Sprintf("a: %v: b", known))
		assert.Equal(t, errors.Is(known, llm.ErrStopped), errors.Is(got, llm.ErrStopped))
	}
	for _, want := range []error{
		paramError("TopK", -3, "≥ 0"),
		paramError("Seed", int64(-3), "≥ 0"),
		paramError("id", int32(9), "small"),
		paramError("TopP", 1.5, "in (0, 1]"),
		paramError("ID", `"x"`, "unique"),
		&CheckpointError{File: "f", Tensor: "t", Field: "a.b", Reason: "r", Got: "g", Want: "w"},
		&PanicError{Phase: "a step", Value: "boom", Stack: "main.go:1"},
		&LeakError{Holdings: []ledger.Holding{{
			Owner: "weights", Kind: "mapped", Device: "cpu:0", Bytes: 7, Addr: 9,
			Stack: []string{"f"},
		}}},
		&ShutdownTimeoutError{Phase: "a step", Running: time.Second},
		&llm.GrammarError{Kind: "choice", Where: "/0", What: "w"},
		&llm.UnsupportedError{Field: "f", Why: "w", Advice: "a"},
		&llm.TaskError{Verb: "embed", Task: llm.TaskGenerate, Model: "m", Advice: "a"},
		startTimeoutError{time.Minute},
	} {
		got := across(t, fmt.Errorf("around: %w", want))
		assert.EqualError(t, got, "around: "+want.Error())
		var core *coreError
		require.ErrorAs(t, got, &core)
		assert.Contains(t, core.in, want)
	}
	deep := across(t, errors.Join(&CheckpointError{
		File: "f",
		Err:  &fs.PathError{Op: "open", Path: "f", Err: syscall.ENOENT},
	}, paramError("a", 1, "b"), llm.ErrInjected))
	var c *CheckpointError
	var p *llm.ParamError
	var n syscall.Errno
	assert.True(t, errors.As(deep, &c) && errors.As(deep, &p) && errors.As(deep, &n))
	assert.ErrorIs(t, c.Err, fs.ErrNotExist)
	assert.ErrorIs(t, deep, llm.ErrInjected)
	assert.Equal(t, syscall.ENOENT, n)
}

// Every sentinel and every error type of this package and of llm crosses: one that is added must be
// added to the wire too.
func TestAllErrorsCross(t *testing.T) {
	// chats are rendered in the caller's process, and functions stay there
	here := []string{"ErrNoChatTemplate", "TemplateError", "ProcessorError"}
	var sentinels, types []string
	inspect := func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			return false // its variables are its own
		case *ast.ValueSpec:
			for _, name := range n.Names {
				if strings.HasPrefix(name.Name, "Err") && !slices.Contains(here, name.Name) {
					sentinels = append(sentinels, name.Name)
				}
			}
		case *ast.TypeSpec:
			if ast.IsExported(n.Name.Name) && strings.HasSuffix(n.Name.Name, "Error") &&
				!slices.Contains(here, n.Name.Name) {
				types = append(types, n.Name.Name)
			}
		}
		return true
	}
	for name, dir := range map[string]string{"engine": ".", "llm": "../llm"} {
		noTest := func(i fs.FileInfo) bool { return !strings.HasSuffix(i.Name(), "_test.go") }
		files, err := parser.ParseDir(token.NewFileSet(), dir, noTest, 0) //nolint:staticcheck // enough here
		if err != nil || files[name] == nil {
			t.Skipf("the package's source is not here: %v", err)
		}
		ast.Inspect(files[name], inspect)
	}
	slices.Sort(types)
	assert.Equal(t, []string{
		"CheckpointError", "GrammarError", "LeakError", "LimitError", "PanicError", "ParamError",
		"ShutdownTimeoutError", "TaskError", "UnsupportedError",
	}, types, "pack and unpack know these")
	engines := 0
	for _, known := range crossing {
		if strings.HasPrefix(known.Error(), "engine: ") {
			engines++
		}
	}
	assert.Len(t, sentinels, engines, "crossing has all of %v", sentinels)
}

type buffer struct{ bytes.Buffer }

func (*buffer) Close() error { return nil }

// What is too big for one message goes in several; an output that is too big for any fails its own
// request.
func TestNewsThatAreTooBig(t *testing.T) {
	b := &buffer{}
	s := &coreServer{link: wire.New(b)}
	s.link.Limit = 500
	s.next.Updates = []update{
		{Handle: 1, Over: true, Out: &Output{Prompt: strings.Repeat("a", 300)}},
		{Handle: 2, Over: true, Out: &Output{Prompt: strings.Repeat("b", 600)}},
	}
	s.next.Replies = []reply{{ID: 7, Body: bytes.Repeat([]byte{1}, 300)}}
	s.flush()
	var got []string
	in := wire.New(b)
	for {
		var n event
		err := in.Recv(&n)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		for _, u := range n.Updates {
			got = append(got, fmt.Sprint("update ", u.Handle, " ", u.Out != nil, " ", u.Err.unpack()))
		}
		for _, r := range n.Replies {
			got = append(got, fmt.Sprint("reply ", r.ID, " ", len(r.Body)))
		}
	}
	require.Len(t, got, 3)
	assert.Equal(t, "update 1 true <nil>", got[0])
	assert.Contains(t, got[1], "update 2 false engine: the output does not fit: wire: ")
	assert.Equal(t, "reply 7 300", got[2])
}

func TestLogTail(t *testing.T) {
	l := &logTail{}
	assert.Empty(t, l.quote())
	fmt.Fprintln(l, "one line")
	assert.Equal(t, "; its log:\n    one line", l.quote())
	for i := range 100_000 {
		fmt.Fprintln(l, "line", i)
	}
	assert.LessOrEqual(t, len(l.buf), 2*tailBytes)
	got := l.quote()
	assert.True(t, strings.HasPrefix(got, "; the last 40 lines of its log:\n    line 99960\n"), got[:80])
	assert.True(t, strings.HasSuffix(got, "\n    line 99999"))
	fmt.Fprintf(l, "panic: boom\n%s", strings.Repeat("frame\n", 200))
	got = l.quote()
	assert.True(t, strings.HasPrefix(got, "; its log, from the crash on:\n    panic: boom\n    frame\n"), got[:80])
	assert.Len(t, strings.Split(got, "\n"), 1+dumpLines)
}
