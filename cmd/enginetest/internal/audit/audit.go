// Package audit finds tests that prove less than they seem to: in their source, and in what ran.
package audit

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
)

// Finding is one weakness of a test.
type Finding struct {
	Check   string `json:"check"`
	File    string `json:"file"`
	Line    int    `json:"line"`
	Package string `json:"package"`
	Test    string `json:"test,omitempty"`
	Message string `json:"message"`
}

// String formats the finding like a compiler's error.
func (f Finding) String() string {
	return fmt.Sprintf("%s:%d: %s: %s", f.File, f.Line, f.Check, f.Message)
}

// The checks. A comment "audit:ignore CHECK reason" on the line, or on the one above it, accepts a
// finding.
const (
	CheckExit       = "exit"        // TestMain ends the process without the result of m.Run
	CheckSkipReason = "skip-reason" // a skip does not say why
	CheckNoProof    = "no-proof"    // a fixture whose checks are all left out
	CheckGuardOrder = "guard-order" // a guard that checks before what it should see is cleaned up
	CheckCannotFail = "cannot-fail" // a test that never uses its *testing.T
	CheckNeverRan   = "never-ran"   // a test that no result has
	CheckOnlySkips  = "only-skips"  // a test that every result skips
)

// file is a parsed test file.
type file struct {
	set     *token.FileSet
	ast     *ast.File
	name    string
	pkg     string
	ignored map[int]string // by line
	found   []Finding
}

// Source audits one test file. src is its text; nil reads the file.
func Source(pkg, name string, src any) (findings []Finding, tests []Test, err error) {
	f := file{set: token.NewFileSet(), name: name, pkg: pkg, ignored: map[int]string{}}
	if f.ast, err = parser.ParseFile(f.set, name, src, parser.ParseComments|parser.SkipObjectResolution); err != nil {
		return nil, nil, err
	}
	for _, group := range f.ast.Comments {
		for _, c := range group.List {
			if rest, ok := strings.CutPrefix(strings.TrimSpace(strings.TrimPrefix(c.Text, "//")),
				"audit:ignore "); ok && strings.Contains(rest, " ") {
				line := f.set.Position(c.Pos()).Line
				f.ignored[line], f.ignored[line+1] = rest, rest
			}
		}
	}
	for _, d := range f.ast.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		f.function(fn)
		if isTest(fn) {
			tests = append(tests, Test{
				pkg, fn.Name.Name, name, f.set.Position(fn.Pos()).Line,
				f.ignored[f.set.Position(fn.Pos()).Line],
			})
		}
	}
	slices.SortStableFunc(f.found, func(a, b Finding) int { return cmp.Compare(a.Line, b.Line) })
	return f.found, tests, nil
}

func (f *file) report(at token.Pos, check, test, format string, args ...any) {
	line := f.set.Position(at).Line
	if strings.HasPrefix(f.ignored[line], check+" ") {
		return
	}
	f.found = append(f.found, Finding{check, f.name, line, f.pkg, test, fmt.Sprintf(format, args...)})
}

func (f *file) function(fn *ast.FuncDecl) {
	name := fn.Name.Name
	if name == "TestMain" && fn.Recv == nil {
		f.testMain(fn)
		return
	}
	if isTest(fn) {
		f.canFail(fn)
	}
	f.guardOrder(fn)
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			f.skip(call, name)
			f.proof(call, name)
		}
		return true
	})
}

// testMain finds an exit that does not depend on m.Run. Since Go 1.15 a TestMain may just return.
func (f *file) testMain(fn *ast.FuncDecl) {
	ran := false
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		switch selector(call) {
		case "os.Exit":
			if lit, ok := first(call).(*ast.BasicLit); ok && lit.Value == "0" {
				f.report(call.Pos(), CheckExit, "TestMain",
					"os.Exit(0) hides every failure; os.Exit(m.Run()), or return")
			}
		default:
			for _, arg := range call.Args { // a function that takes m runs it
				if id, ok := arg.(*ast.Ident); ok && id.Name == parameter(fn) {
					ran = true
				}
			}
			ran = ran || strings.HasSuffix(selector(call), ".Run")
		}
		return true
	})
	if !ran {
		f.report(fn.Pos(), CheckExit, "TestMain", "TestMain never runs m: no test of this package runs")
	}
}

// canFail finds tests that cannot fail: they do something and never look at t.
func (f *file) canFail(fn *ast.FuncDecl) {
	if len(fn.Body.List) == 0 || !strings.HasPrefix(fn.Name.Name, "Test") {
		return
	}
	t, used := parameter(fn), false
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		used = used || ok && id.Name == t
		return !used
	})
	if !used || t == "_" || t == "" {
		f.report(fn.Pos(), CheckCannotFail, fn.Name.Name, "%s never uses its *testing.T: only a panic can fail it",
			fn.Name.Name)
	}
}

// skip finds skips without a reason.
func (f *file) skip(call *ast.CallExpr, test string) {
	s := selector(call)
	receiver, method, _ := strings.Cut(s, ".")
	if receiver != "t" && receiver != "b" && receiver != "tb" {
		return
	}
	empty := len(call.Args) == 0
	if lit, ok := first(call).(*ast.BasicLit); ok && strings.Trim(lit.Value, "\"` ") == "" {
		empty = true
	}
	if (method == "Skip" || method == "Skipf") && empty || method == "SkipNow" {
		f.report(call.Pos(), CheckSkipReason, test,
			"%s does not say why: no report can tell a missing GPU from a forgotten test", s)
	}
}

// The options of a fixture that leave one of its checks out, and how many there are.
const (
	leaveOut   = "Without"
	allWithout = 2
)

// proof finds fixtures that leave out everything that could be left out.
func (f *file) proof(call *ast.CallExpr, test string) {
	s := selector(call)
	if !strings.HasPrefix(s, "runner.") && !strings.HasPrefix(s, "harness.") && !strings.HasPrefix(s, "server.") {
		return
	}
	var without []string
	for _, arg := range call.Args {
		if option, ok := arg.(*ast.CallExpr); ok {
			if _, name, _ := strings.Cut(selector(option), "."); strings.HasPrefix(name, leaveOut) {
				without = append(without, name)
			}
		}
	}
	if len(without) >= allWithout {
		f.report(call.Pos(), CheckNoProof, test, "%s leaves out %s: what is left of its proof?", s,
			strings.Join(without, ", "))
	}
}

// guardOrder finds a guard that is not the first to register a cleanup: cleanups run last in, first out, so what was registered
// before the guard is still alive when the guard checks.
func (f *file) guardOrder(fn *ast.FuncDecl) {
	before := ""
	for _, stmt := range fn.Body.List {
		guard, cleanup := token.NoPos, ""
		ast.Inspect(stmt, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncLit, *ast.DeferStmt:
				return false
			case *ast.CallExpr:
				switch s := selector(n); s {
				case "leakcheck.Guard":
					guard = n.Pos()
				case "t.Cleanup", "runner.Start", "runner.New", "harness.Start", "server.Command", "gpuwait.Acquire":
					cleanup = s
				}
			}
			return true
		})
		if guard != token.NoPos && before != "" {
			f.report(guard, CheckGuardOrder, fn.Name.Name,
				"leakcheck.Guard comes after %s, whose cleanup runs after the guard's check: call Guard first", before)
		}
		if cleanup != "" && before == "" {
			before = cleanup
		}
	}
}

// isTest reports whether go test runs a function: TestXxx(t *testing.T), FuzzXxx, ExampleXxx.
func isTest(fn *ast.FuncDecl) bool {
	if fn.Recv != nil || fn.Type.TypeParams != nil {
		return false
	}
	name := fn.Name.Name
	for _, p := range []string{"Test", "Fuzz"} {
		if rest, ok := strings.CutPrefix(name, p); ok && name != "TestMain" &&
			(rest == "" || rest[0] < 'a' || rest[0] > 'z') {
			return len(fn.Type.Params.List) == 1
		}
	}
	return false
}

func parameter(fn *ast.FuncDecl) string {
	if fn.Type.Params.NumFields() != 1 || len(fn.Type.Params.List[0].Names) != 1 {
		return ""
	}
	return fn.Type.Params.List[0].Names[0].Name
}

// selector returns "pkg.Func" or "value.Method" of a call, with or without type arguments; "" for anything else.
func selector(call *ast.CallExpr) string {
	fun := call.Fun
	if index, ok := fun.(*ast.IndexExpr); ok {
		fun = index.X
	}
	sel, ok := fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if id, ok := sel.X.(*ast.Ident); ok {
		return id.Name + "." + sel.Sel.Name
	}
	return ""
}

func first(call *ast.CallExpr) ast.Expr {
	if len(call.Args) == 0 {
		return nil
	}
	return call.Args[0]
}
