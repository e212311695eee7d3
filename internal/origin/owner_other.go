//go:build !linux

package origin

// OwnedByUs reports whether a file belongs to the user of this process.
func OwnedByUs(string) bool { return false }
