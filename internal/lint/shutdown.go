package lint

import (
	"go/ast"
	"go/types"
	"strings"
)

var shutdownCheck = &Check{
	Name: "shutdown-error",
	Doc: `find calls of Shutdown whose error is dropped

The error of Shutdown says what the engine could not release. Only a deliberate "_ =" drops it without a finding.
The standard library's servers and examples are left out.`,
	run: func(p *pass) {
		if strings.HasPrefix(p.fn.Name.Name, "Example") {
			return // it shows a use, and has no test to fail
		}
		ast.Inspect(p.fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ExprStmt:
				p.dropped(n.X, "")
			case *ast.DeferStmt:
				p.dropped(n.Call, "defer ")
			case *ast.GoStmt:
				p.dropped(n.Call, "go ")
			}
			return true
		})
	},
}

func (p *pass) dropped(e ast.Expr, how string) {
	call, ok := ast.Unparen(e).(*ast.CallExpr)
	if !ok {
		return
	}
	fn := p.callee(call)
	if fn == nil || fn.Name() != "Shutdown" || fn.Signature().Recv() == nil || !returnsError(fn) || standard(fn.Pkg()) {
		return
	}
	p.report(call.Pos(), "%sShutdown drops its error, which says what the engine could not release: check it", how)
}

// standard reports whether a package is one of the standard library that has servers.
func standard(pkg *types.Package) bool {
	if pkg == nil {
		return false
	}
	first, _, _ := strings.Cut(pkg.Path(), "/")
	return first == "net" || first == "testing"
}
