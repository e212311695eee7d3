// Package suite is run by the tests of forkproc in every mode of the go command.
package suite

// Only runs in children only: their coverage must reach the parent's profile.
func Only(n int) int {
	if n > 0 {
		return n
	}
	return -n
}
