//go:build !linux

package proc

// Inode is not known on this system.
func Inode(int) uint64 { return 0 }

// InUse reports whether a living process uses the file: not known on this system.
func InUse(string) bool { return false }
