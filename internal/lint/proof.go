package lint

import (
	"go/ast"
	"go/types"
	"strings"
)

var proofCheck = &Check{
	Name: "no-proof",
	Doc: `find fixtures whose proof is left out

A fixture that is given every Without… option of its package, or an Allow that accepts any finding,
proves nothing.`,
	run: func(p *pass) {
		ast.Inspect(p.fn.Body, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				p.leftOut(call)
				p.acceptsAll(call)
			}
			return true
		})
	},
}

// leftOut finds a call that is given all the Without… options that its package has, when there are
// at least two.
func (p *pass) leftOut(call *ast.CallExpr) {
	fn := p.callee(call)
	if ours(fn) == "" {
		return
	}
	given := map[string]bool{}
	for _, arg := range call.Args {
		if option, ok := ast.Unparen(arg).(*ast.CallExpr); ok {
			if o := p.callee(option); ours(o) != "" && strings.HasPrefix(o.Name(), "Without") {
				given[o.Name()] = true
			}
		}
	}
	var all []string
	for _, name := range fn.Pkg().Scope().Names() {
		if f, ok := fn.Pkg().Scope().Lookup(name).(*types.Func); ok && f.Exported() && strings.HasPrefix(name, "Without") {
			if !given[name] {
				return
			}
			all = append(all, name)
		}
	}
	if len(all) > 1 {
		p.report(call.Pos(), "%s leaves out %s: what is left of its proof?", fn.Name(), strings.Join(all, " and "))
	}
}

// acceptsAll finds Allow("*", …): a pattern of stars and spaces matches every finding.
func (p *pass) acceptsAll(call *ast.CallExpr) {
	fn := p.callee(call)
	if pkg := ours(fn); pkg == "" || fn.Name() != "Allow" || len(call.Args) == 0 {
		return
	}
	if pattern, ok := p.text(call.Args[0]); ok && pattern != "" && strings.Trim(pattern, "*") == "" {
		p.report(call.Pos(), "Allow(%q) accepts every finding: name the one that is known", pattern)
	}
}
