package lint

import (
	"go/ast"
	"go/token"
	"go/types"
)

var exitCheck = &Check{
	Name: "exit",
	Doc: `find a TestMain that ends the process without the result of m.Run

os.Exit(0) after the tests makes every failure a success. A TestMain that never uses its *testing.M runs no test. An
os.Exit(0) before the tests, as in a program that starts itself again, is accepted, and so is one that an
earlier exit or a condition on the result guards.`,
	run: exits,
}

func exits(p *pass) {
	if p.fn.Name.Name != "TestMain" || p.fn.Recv != nil {
		return
	}
	m := p.parameter(p.fn)
	results := map[types.Object]bool{m: m != nil} // m, and what was made of it
	ran, guarded := token.NoPos, false
	var stack []ast.Node
	ast.Inspect(p.fn.Body, func(n ast.Node) bool {
		if n == nil {
			stack = stack[:len(stack)-1]
			return true
		}
		stack = append(stack, n)
		switch n := n.(type) {
		case *ast.Ident:
			if m != nil && p.Info.Uses[n] == m && ran == token.NoPos {
				ran = n.Pos()
			}
		case *ast.AssignStmt:
			for _, right := range n.Rhs {
				if p.uses(right, results) {
					p.assigned(n, results)
				}
			}
		case *ast.CallExpr:
			if !is(p.callee(n), "os", "Exit") || len(n.Args) != 1 {
				return true
			}
			deferred := isDeferred(stack)
			switch {
			case !p.zero(n.Args[0]):
				guarded = guarded || ran != token.NoPos
			case deferred, ran != token.NoPos && !guarded && !p.conditional(stack, results):
				p.report(n.Pos(), "os.Exit(0) hides every failure; os.Exit(m.Run()), or return")
			}
		}
		return true
	})
	if ran == token.NoPos {
		p.report(p.fn.Pos(), "TestMain never runs m: no test of this package runs")
	}
}

func isDeferred(stack []ast.Node) bool {
	for _, n := range stack {
		if _, ok := n.(*ast.DeferStmt); ok {
			return true
		}
	}
	return false
}

// conditional reports whether one of the nodes is chosen by a condition on the results.
func (p *pass) conditional(stack []ast.Node, results map[types.Object]bool) bool {
	for _, n := range stack {
		switch n := n.(type) {
		case *ast.IfStmt:
			if p.uses(n.Cond, results) {
				return true
			}
		case *ast.SwitchStmt:
			if n.Tag != nil && p.uses(n.Tag, results) {
				return true
			}
		case *ast.CaseClause:
			for _, e := range n.List {
				if p.uses(e, results) {
					return true
				}
			}
		}
	}
	return false
}
