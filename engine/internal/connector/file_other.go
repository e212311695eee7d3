//go:build !linux

package connector

import (
	"context"
	"errors"
	"fmt"
	"runtime"
)

type file struct {
	geometry
	memory []byte
	id     int
}

func openFile(context.Context, *Options) (*file, error) {
	return nil, fmt.Errorf("connector: %w on %s", errors.ErrUnsupported, runtime.GOOS)
}

// Remove has nothing to remove.
func Remove(string) error { return nil }

func (f *file) alive(int) bool   { return true }
func (f *file) close() error     { return nil }
func (f *file) address() uintptr { return 0 }
