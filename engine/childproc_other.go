//go:build !linux

package engine

import (
	"errors"
	"os"

	"github.com/enginetest/enginetest/engine/internal/wire"
	"github.com/enginetest/enginetest/internal/proc"
)

// spawn is not reached: Config.Core ChildProcess is refused on this system.
func spawn(string) (*proc.Family, *wire.Conn, *os.File, error) {
	return nil, nil, nil, errors.ErrUnsupported
}
