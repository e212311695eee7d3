package lint

import (
	"go/ast"
	"go/constant"
	"go/types"
	"strings"
)

// module is the path that the packages of this module start with.
const module = "github.com/enginetest/enginetest/"

// callee returns the function or method that a call names; nil for a value of a function type.
func (p *pass) callee(call *ast.CallExpr) *types.Func {
	fun := ast.Unparen(call.Fun)
	switch index := fun.(type) {
	case *ast.IndexExpr:
		fun = index.X
	case *ast.IndexListExpr:
		fun = index.X
	}
	var id *ast.Ident
	switch f := fun.(type) {
	case *ast.Ident:
		id = f
	case *ast.SelectorExpr:
		id = f.Sel
	default:
		return nil
	}
	fn, _ := p.Info.Uses[id].(*types.Func)
	return fn
}

// is reports whether fn is one of the functions or methods of a package.
func is(fn *types.Func, pkg string, names ...string) bool {
	if fn == nil || fn.Pkg() == nil || fn.Pkg().Path() != pkg {
		return false
	}
	for _, name := range names {
		if fn.Name() == name {
			return true
		}
	}
	return false
}

// ours returns the package of this module that fn is in, such as "harness"; "" for another.
func ours(fn *types.Func) string {
	if fn == nil || fn.Pkg() == nil {
		return ""
	}
	pkg, ok := strings.CutPrefix(fn.Pkg().Path(), module)
	if !ok {
		return ""
	}
	return pkg
}

// text returns the constant string that an expression is.
func (p *pass) text(e ast.Expr) (string, bool) {
	v := p.Info.Types[e].Value
	if v == nil || v.Kind() != constant.String {
		return "", false
	}
	return constant.StringVal(v), true
}

// zero reports whether an expression is the constant 0.
func (p *pass) zero(e ast.Expr) bool {
	v := p.Info.Types[e].Value
	return v != nil && v.Kind() == constant.Int && constant.Sign(v) == 0
}

// uses reports whether a node mentions one of the objects.
func (p *pass) uses(n ast.Node, objects map[types.Object]bool) (found bool) {
	if n == nil {
		return false
	}
	ast.Inspect(n, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			found = found || objects[p.Info.Uses[id]]
		}
		return !found
	})
	return found
}

// parameter returns the only parameter of a function; nil when it has no name.
func (p *pass) parameter(fn *ast.FuncDecl) types.Object {
	if fn.Type.Params.NumFields() != 1 || len(fn.Type.Params.List[0].Names) != 1 {
		return nil
	}
	return p.Info.Defs[fn.Type.Params.List[0].Names[0]]
}

// assigned adds to objects the variables that an assignment sets.
func (p *pass) assigned(a *ast.AssignStmt, objects map[types.Object]bool) {
	for _, left := range a.Lhs {
		if id, ok := left.(*ast.Ident); ok {
			if o := p.Info.Defs[id]; o != nil {
				objects[o] = true
			} else if o := p.Info.Uses[id]; o != nil {
				objects[o] = true
			}
		}
	}
}

// returnsError reports whether the last result of a function is an error.
func returnsError(fn *types.Func) bool {
	results := fn.Signature().Results()
	return results.Len() > 0 &&
		types.Identical(results.At(results.Len()-1).Type(), types.Universe.Lookup("error").Type())
}
