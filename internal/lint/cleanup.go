package lint

import (
	"go/ast"
	"go/types"
)

var cleanupCheck = &Check{
	Name: "cleanup-context",
	Doc: `find cleanups that use the test's context

t.Context is cancelled just before the cleanups run: what is called with it in a cleanup ends at once, and the
cleanup is not done. Use context.Background, with a time limit.`,
	run: cleanupContext,
}

func cleanupContext(p *pass) {
	contexts := map[types.Object]bool{} // variables that hold the test's context or one made from it
	ast.Inspect(p.fn.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if len(n.Rhs) == 1 && p.derived(n.Rhs[0], contexts) {
				p.assigned(n, contexts)
			}
		case *ast.CallExpr:
			if is(p.callee(n), "testing", "Cleanup") && len(n.Args) == 1 {
				if lit, ok := ast.Unparen(n.Args[0]).(*ast.FuncLit); ok {
					p.cleanup(lit, contexts)
				}
			}
		}
		return true
	})
}

// derived reports whether an expression is the test's context or one made from it. What merely takes
// a context is not: an engine that was opened with it outlives it.
func (p *pass) derived(e ast.Expr, contexts map[types.Object]bool) bool {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		return contexts[p.Info.Uses[e]]
	case *ast.CallExpr:
		fn := p.callee(e)
		if is(fn, "testing", "Context") {
			return true
		}
		if fn == nil || fn.Pkg() == nil || fn.Pkg().Path() != "context" || fn.Name() == "WithoutCancel" || len(e.Args) == 0 {
			return false
		}
		return p.derived(e.Args[0], contexts)
	}
	return false
}

// cleanup finds uses of the test's context as an argument within a cleanup.
func (p *pass) cleanup(lit *ast.FuncLit, outer map[types.Object]bool) {
	ast.Inspect(lit.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if is(p.callee(call), "context", "WithoutCancel") {
			return false
		}
		for _, arg := range call.Args {
			if t := p.Info.TypeOf(arg); t != nil && types.TypeString(t, nil) == "context.Context" && p.derived(arg, outer) {
				p.report(arg.Pos(), "the test's context is cancelled before its cleanups run: use context.Background()")
				return false
			}
		}
		return true
	})
}
