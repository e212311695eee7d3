package retain

import (
	"strings"

	"github.com/enginetest/enginetest/leakcheck/internal/symbols"
)

// inSyncMap reports whether a view is a node of the tree under a sync.Map.
func inSyncMap(v view) bool {
	return v.kind == value && v.t.PkgPath() == "internal/sync" &&
		(strings.HasPrefix(v.t.Name(), "indirect[") || strings.HasPrefix(v.t.Name(), "entry["))
}

// syncMap writes a way through a sync.Map as one through a map: `["key"]` for ".m.root",
// ".children[10]", ".value".
func (x *explainer) syncMap(root *Step, objects []int, views []view, labels []string) {
	for k, v := range views[:len(views)-1] {
		if !inSyncMap(v) {
			continue
		}
		into := &root.Edge
		if k > 0 {
			into = &labels[k-1]
		}
		if k == 0 || !inSyncMap(views[k-1]) {
			*into = strings.TrimSuffix(strings.TrimSuffix(*into, ".root"), ".m")
		}
		if strings.HasPrefix(v.t.Name(), "indirect[") {
			labels[k] = ""
			continue
		}
		key, ok := v.t.FieldByName("key")
		switch rest := labels[k]; {
		case strings.HasPrefix(rest, ".overflow"):
			labels[k] = ""
		case strings.HasPrefix(rest, ".key"):
			labels[k] = " key" + strings.TrimPrefix(rest, ".key")
		case ok:
			labels[k] = "[" + x.format(key.Type, v.base+uint64(key.Offset), false) + "]" +
				strings.TrimPrefix(rest, ".value")
		}
	}
}

// standard reports whether a variable belongs to the standard library: to none of the modules that
// the program is made of.
func standard(name string) bool {
	pkg := strings.TrimSuffix(name, "."+name[strings.LastIndexByte(name, '.')+1:])
	return symbols.Standard(pkg)
}
