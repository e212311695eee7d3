package server

import (
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
)

// leftover is something that a server left behind.
type leftover struct{ path, text string }

// accepted reports whether a pattern matches the path.
func accepted(patterns []string, name string) bool {
	for _, p := range patterns {
		if ok, _ := path.Match(p, name); ok || p == name {
			return true
		}
	}
	return false
}

// tempFiles lists what is in the server's own temporary folder: the files, and the folders that are
// empty.
func tempFiles(dir string) (found []leftover) {
	_ = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil
		}
		rel, _ := filepath.Rel(dir, name)
		what := "temporary file"
		if d.Type()&fs.ModeSocket != 0 {
			what = "unix socket"
		}
		size := ""
		if info, err := d.Info(); err == nil && d.Type().IsRegular() {
			size = fmt.Sprintf(" (%d bytes)", info.Size())
		}
		found = append(found, leftover{rel, fmt.Sprintf("%s $TMPDIR/%s%s is left, removed now", what, rel, size)})
		return nil
	})
	return found
}
