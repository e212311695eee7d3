package symbols

import (
	"runtime/debug"
	"strings"
	"sync"
)

var modules = sync.OnceValue(func() (paths []string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	paths = append(paths, info.Main.Path, strings.TrimSuffix(info.Path, ".test"))
	for _, d := range info.Deps {
		paths = append(paths, d.Path)
	}
	return paths
})

// Standard reports whether a package is part of the standard library: it is in none of the modules
// that the program is made of.
func Standard(pkg string) bool {
	if first, _, _ := strings.Cut(pkg, "/"); strings.Contains(first, ".") || pkg == "main" || pkg == "" ||
		len(modules()) == 0 {
		return false
	}
	for _, m := range modules() {
		if m != "" && (pkg == m || strings.HasPrefix(pkg, m+"/") || pkg == m+"_test") {
			return false
		}
	}
	return true
}
