package proc

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/enginetest/enginetest/internal/procfs"
)

// Inode identifies the open file behind a descriptor: the same number in another process is the
// same pipe. 0: none, or not known on this system.
func Inode(fd int) uint64 {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return 0
	}
	return st.Ino
}

// InUse reports whether a living process has the file mapped or open, or is bound to it as a
// socket.
func InUse(path string) bool {
	for _, s := range procfs.Sockets(os.Getpid()) {
		if s.Path == path {
			return true
		}
	}
	for _, pid := range allPIDs() {
		dir := "/proc/" + strconv.Itoa(pid)
		if maps, err := os.ReadFile(dir + "/maps"); err == nil && bytes.Contains(maps, []byte(" "+path+"\n")) {
			return true
		}
		fds, _ := filepath.Glob(dir + "/fd/*")
		for _, fd := range fds {
			if target, err := os.Readlink(fd); err == nil && target == path {
				return true
			}
		}
	}
	return false
}
