package gotest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// TestFiles is the format of [Command.List] that names a package's test files, one per line.
const TestFiles = `{{range .TestGoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}{{range .XTestGoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}`

// Of returns the command for one package of its own.
func (c Command) Of(pkg string) Command {
	c.Packages = []string{pkg}
	return c
}

// Tests returns the names of the tests, fuzz tests and examples in files that the command runs. It
// reads the source, as go test itself does to build the test's main function: that costs a
// thousandth of building and asking the test.
func (c Command) Tests(files []string) (names []string, err error) {
	pattern, _, _ := strings.Cut(c.Flag("run"), "/")
	wanted, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && isTest(fn) && wanted.MatchString(fn.Name.Name) {
				names = append(names, fn.Name.Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func isTest(fn *ast.FuncDecl) bool {
	if fn.Recv != nil || fn.Name.Name == "TestMain" {
		return false
	}
	for prefix, parameters := range map[string]int{"Test": 1, "Fuzz": 1, "Example": 0} {
		if rest, ok := strings.CutPrefix(fn.Name.Name, prefix); ok && fn.Type.Params.NumFields() == parameters {
			first, _ := utf8.DecodeRuneInString(rest)
			return rest == "" || !unicode.IsLower(first)
		}
	}
	return false
}
