package leakcheck

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/enginetest/enginetest/leakcheck/internal/symbols"
)

// library returns the module, or the package of the standard library, whose own code a goroutine
// runs and which started it; "" when anyone else's is involved.
func (g *goroutine) library() string {
	lib := g.creator.library()
	if lib == "" || slices.ContainsFunc(g.frames, func(f frame) bool {
		return f.library() != lib && f.file != "" && !standardFile(f)
	}) {
		return ""
	}
	return lib
}

// library returns the module of a frame's function, by its file's place in the module cache; "" for
// the program's own modules, vendored ones, and most of the standard library, which starts
// goroutines that run what they are given.
func (f frame) library() string {
	pkg := packageOf(f.fn)
	if pkg == "net/http" || pkg == "database/sql" {
		return pkg
	}
	file := strings.ToLower(strings.ReplaceAll(f.file, "!", "")) // capitals are escaped so
	for dir := pkg; dir != "." && dir != "/"; dir = path.Dir(dir) {
		if strings.Contains(file, strings.ToLower(dir)+"@") {
			return dir
		}
	}
	return ""
}

// standardFile reports whether a frame is of the standard library, or of what extends it.
func standardFile(f frame) bool {
	pkg := packageOf(f.fn)
	return symbols.Standard(pkg) || strings.HasPrefix(pkg, "golang.org/x/net")
}

// packageOf cuts "a.b/c.(*T).m" to "a.b/c".
func packageOf(fn string) string {
	dir := strings.LastIndexByte(fn, '/') + 1
	name, _, _ := strings.Cut(fn[dir:], ".")
	return fn[:dir] + name
}

// byLibrary makes one finding of all goroutines that work for the same library: a connection of one
// client has seven, and they end together.
func byLibrary(fs []Finding) (out []Finding) {
	first := map[string]int{}
	for _, f := range fs {
		if f.Kind != KindGoroutine || f.cause == "" {
			out = append(out, f)
			continue
		}
		k, ok := first[f.cause]
		if !ok {
			first[f.cause] = len(out)
			out = append(out, f)
			continue
		}
		out[k].Also = append(out[k].Also, strings.TrimPrefix(f.Signature, "goroutine: "))
	}
	for _, k := range first {
		f := &out[k]
		if len(f.Also) == 0 {
			continue
		}
		f.Detail += fmt.Sprintf("and with it, all of %s:\n", f.cause)
		for _, s := range f.Also {
			f.Detail += "    " + s + "\n"
		}
		f.Note = strings.TrimSuffix(fmt.Sprintf("close what was made with %s: a connection, a client, a server\n%s", f.cause, f.Note), "\n")
		f.accept = fmt.Sprintf("goroutine: %s*", f.cause)
	}
	return out
}
