package proc

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/enginetest/enginetest/internal/procfs"
)

// listening names the sockets that pid accepts connections on.
func listening(pid int) []string {
	inodes := map[string]bool{}
	fds, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/fd/*")
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil {
			if ino, ok := strings.CutPrefix(target, "socket:["); ok {
				inodes[strings.TrimSuffix(ino, "]")] = true
			}
		}
	}
	if len(inodes) == 0 {
		return nil
	}
	var found []string
	for _, s := range procfs.Sockets(pid) {
		if s.Listening && inodes[s.Inode] {
			found = append(found, s.Name())
		}
	}
	slices.Sort(found)
	return found
}
