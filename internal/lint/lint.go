// Package lint finds test code that proves less than it seems to. Its checks need types and nothing
// else, so that the command audit runs them by itself and compat/vet wraps them as analyzers.
package lint

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// Check is one kind of weakness.
type Check struct {
	Name string // what a comment "audit:ignore NAME reason" accepts
	Doc  string // the first line is a summary
	run  func(*pass)
}

// Checks returns all checks.
func Checks() []*Check {
	return []*Check{exitCheck, skipCheck, proofCheck, guardCheck, cleanupCheck, shutdownCheck, failCheck}
}

// Unit is a type-checked package with its tests.
type Unit struct {
	Path  string // its import path; that of the tested package for an external test package
	Fset  *token.FileSet
	Files []*ast.File
	Info  *types.Info
}

// Finding is one weakness.
type Finding struct {
	Check   string
	Pos     token.Pos
	Test    string // the function that it is in
	Message string
}

// Run applies the check to the unit's test files.
func (c *Check) Run(u Unit) []Finding {
	p := &pass{Unit: u, check: c.Name}
	for _, f := range u.Files {
		if !strings.HasSuffix(u.Fset.Position(f.Package).Filename, "_test.go") {
			continue
		}
		p.ignored = ignores(u.Fset, f)
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
				p.fn = fn
				c.run(p)
			}
		}
	}
	slices.SortStableFunc(p.found, func(a, b Finding) int { return cmp.Compare(a.Pos, b.Pos) })
	return p.found
}

// pass is one check at one function.
type pass struct {
	Unit
	check   string
	fn      *ast.FuncDecl
	ignored map[int]string // by line
	found   []Finding
}

func (p *pass) report(at token.Pos, format string, args ...any) {
	if strings.HasPrefix(p.ignored[p.Fset.Position(at).Line], p.check+" ") {
		return
	}
	p.found = append(p.found, Finding{p.check, at, p.fn.Name.Name, fmt.Sprintf(format, args...)})
}

// ignores returns what the comments "audit:ignore CHECK reason" of a file accept, by line. One
// without a reason accepts nothing.
func ignores(fset *token.FileSet, f *ast.File) map[int]string {
	lines := map[int]string{}
	for _, group := range f.Comments {
		for _, c := range group.List {
			text := strings.TrimSpace(strings.TrimPrefix(c.Text, "//"))
			if rest, ok := strings.CutPrefix(text, "audit:ignore "); ok && strings.Contains(rest, " ") {
				line := fset.Position(c.Pos()).Line
				lines[line], lines[line+1] = rest, rest
			}
		}
	}
	return lines
}

// Test is a test in the source.
type Test struct {
	Package, Name, File string
	Line                int
	Ignored             string // what a comment at its declaration accepts
}

// Tests returns the tests and fuzz tests of the unit.
func (u Unit) Tests() (tests []Test) {
	for _, f := range u.Files {
		lines := ignores(u.Fset, f)
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if at := u.Fset.Position(d.Pos()); ok && strings.HasSuffix(at.Filename, "_test.go") && isTest(fn) {
				at := u.Fset.Position(fn.Name.Pos())
				tests = append(tests, Test{u.Path, fn.Name.Name, at.Filename, at.Line, lines[at.Line]})
			}
		}
	}
	return tests
}

// isTest reports whether go test runs a function: TestXxx(t *testing.T), FuzzXxx.
func isTest(fn *ast.FuncDecl) bool {
	if fn.Recv != nil || fn.Type.TypeParams != nil || fn.Name.Name == "TestMain" {
		return false
	}
	for _, prefix := range []string{"Test", "Fuzz"} {
		if rest, ok := strings.CutPrefix(fn.Name.Name, prefix); ok && (rest == "" || rest[0] < 'a' || rest[0] > 'z') {
			return fn.Type.Params.NumFields() == 1
		}
	}
	return false
}
