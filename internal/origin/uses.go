package origin

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/enginetest/enginetest/internal/procfs"
)

// Uses returns the entries of folders that a process has open to write, has mapped to share, or is
// bound to, each with which of them it is.
func Uses(pid int, dirs []string) map[string]string {
	used := map[string]string{}
	note := func(path, how string) {
		for _, dir := range dirs {
			if name, ok := strings.CutPrefix(strings.TrimSuffix(path, " (deleted)"), dir+"/"); ok {
				name, _, _ = strings.Cut(name, "/")
				used[filepath.Join(dir, name)] = how
			}
		}
	}
	sockets := map[string]bool{}
	dir := fmt.Sprintf("/proc/%d/", pid)
	fds, _ := os.ReadDir(dir + "fd")
	for _, fd := range fds {
		target, _ := os.Readlink(dir + "fd/" + fd.Name())
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			sockets[strings.TrimSuffix(inode, "]")] = true
		} else if strings.HasPrefix(target, "/") && procfs.Writable(pid, fd.Name()) {
			note(target, "had open")
		}
	}
	for line := range strings.Lines(string(procfs.Read(pid, "maps"))) {
		if f := strings.Fields(line); len(f) > 5 && f[1][1] == 'w' && f[1][3] == 's' {
			note(strings.Join(f[5:], " "), "had mapped")
		}
	}
	if len(sockets) == 0 {
		return used
	}
	for _, s := range procfs.Sockets(pid) {
		if s.Path != "" && sockets[s.Inode] {
			note(s.Path, "was bound to")
		}
	}
	return used
}
