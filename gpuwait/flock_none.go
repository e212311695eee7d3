//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package gpuwait

import (
	"fmt"
	"os"
	"runtime"
)

func noLocks() error {
	return fmt.Errorf("gpuwait: leases need flock, which %s does not have", runtime.GOOS)
}

func ownFolder(string) error                    { return noLocks() }
func lockFile(string, string) (*os.File, error) { return nil, noLocks() }
func openGate(string) (*os.File, error)         { return nil, noLocks() }
func isFree(string, string) (bool, error)       { return false, noLocks() }
