package lint

import (
	"go/ast"
	"strings"
)

var skipCheck = &Check{
	Name: "skip-reason",
	Doc: `find skips that do not say why

Without a reason no report can tell a machine that lacks a GPU from a test that was switched off and forgotten.`,
	run: func(p *pass) {
		ast.Inspect(p.fn.Body, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				p.skip(call)
			}
			return true
		})
	},
}

func (p *pass) skip(call *ast.CallExpr) {
	fn := p.callee(call)
	if !is(fn, "testing", "Skip", "Skipf", "SkipNow") {
		return
	}
	empty := fn.Name() == "SkipNow" || len(call.Args) == 0
	if !empty {
		if reason, ok := p.text(call.Args[0]); ok && strings.TrimSpace(reason) == "" {
			empty = len(call.Args) == 1
		}
	}
	if empty {
		p.report(call.Pos(), "%s does not say why: no report can tell a missing GPU from a forgotten test", fn.Name())
	}
}
