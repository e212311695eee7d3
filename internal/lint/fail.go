package lint

import (
	"go/ast"
	"go/types"
	"strings"
)

var failCheck = &Check{
	Name: "cannot-fail",
	Doc: `find tests that cannot fail

A test that does something and never uses its *testing.T fails only by a panic.`,
	run: func(p *pass) {
		if !isTest(p.fn) || !strings.HasPrefix(p.fn.Name.Name, "Test") || len(p.fn.Body.List) == 0 {
			return
		}
		t := p.parameter(p.fn)
		if t == nil || !p.uses(ast.Node(p.fn.Body), map[types.Object]bool{t: true}) {
			p.report(p.fn.Pos(), "%s never uses its *testing.T: only a panic can fail it", p.fn.Name.Name)
		}
	},
}
