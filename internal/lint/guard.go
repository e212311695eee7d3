package lint

import (
	"go/ast"
	"go/types"
)

var guardCheck = &Check{
	Name: "guard-order",
	Doc: `find a leakcheck.Guard that checks before what it should see is cleaned up

Cleanups run last in, first out. What was registered before the guard is still alive when the guard checks,
and what it leaves behind afterwards is not seen.`,
	run: func(p *pass) {
		p.guardOrder(p.fn.Body)
		ast.Inspect(p.fn.Body, func(n ast.Node) bool {
			if lit, ok := n.(*ast.FuncLit); ok {
				p.guardOrder(lit.Body)
			}
			return true
		})
	},
}

// guardOrder looks at the statements of one function body, not into the functions in it.
func (p *pass) guardOrder(body *ast.BlockStmt) {
	before := map[types.Object]string{} // what registered the first cleanup of a test
	for _, stmt := range body.List {
		ast.Inspect(stmt, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncLit, *ast.DeferStmt:
				return false
			case *ast.CallExpr:
				t, what := p.registers(n)
				if t == nil {
					return true
				}
				if what == "leakcheck.Guard" && before[t] != "" && before[t] != what {
					p.report(n.Pos(), "leakcheck.Guard comes after %s, whose cleanup runs after the guard's check: call Guard first",
						before[t])
				}
				if before[t] == "" {
					before[t] = what
				}
			}
			return true
		})
	}
}

// registers returns the test that a call registers a cleanup with, and what the call is.
func (p *pass) registers(call *ast.CallExpr) (t types.Object, what string) {
	fn := p.callee(call)
	if is(fn, "testing", "Cleanup") {
		if sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr); ok {
			return p.variable(sel.X), "Cleanup"
		}
	}
	pkg := ours(fn)
	if pkg == "" || fn.Signature().Recv() != nil || len(call.Args) == 0 {
		return nil, ""
	}
	switch what = pkg + "." + fn.Name(); what {
	case "leakcheck.Guard", "harness.Start", "harness.Lease", "runner.Start", "runner.New", "runner.Lease",
		"gpuwait.Acquire":
		return p.variable(call.Args[0]), what
	}
	return nil, ""
}

// variable returns the variable that an expression is; nil for anything else.
func (p *pass) variable(e ast.Expr) types.Object {
	if id, ok := ast.Unparen(e).(*ast.Ident); ok {
		return p.Info.Uses[id]
	}
	return nil
}
