package forkproc

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
)

func flagValue(name string) string {
	if f := flag.Lookup(name); f != nil {
		return f.Value.String()
	}
	return ""
}

// repeatTestLog does again, in the parent, what the child did with files and variables: the go
// command decides from the parent's log alone whether a cached result still holds. Devices, pipes
// and the like are never opened.
func repeatTestLog(log string) {
	b, err := os.ReadFile(log)
	if err != nil {
		return // the child died before it wrote one
	}
	dir := startDir
	for line := range strings.Lines(string(b)) {
		op, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		if op == "getenv" {
			if !strings.HasPrefix(name, "FORKPROC_") && name != "TMPDIR" {
				os.Getenv(name)
			}
			continue
		}
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		switch op {
		case "chdir":
			dir = name
		case "stat":
			_, _ = os.Stat(name)
		case "open":
			if fi, err := os.Stat(name); err == nil && !fi.Mode().IsRegular() && !fi.IsDir() {
				continue
			}
			if f, err := os.Open(name); err == nil {
				_ = f.Close()
			}
		}
	}
}
