package origin

import (
	"os"
	"syscall"
)

// OwnedByUs reports whether a file belongs to the user of this process.
func OwnedByUs(path string) bool {
	info, err := os.Lstat(path)
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}
