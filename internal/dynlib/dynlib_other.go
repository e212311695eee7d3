//go:build !linux || !(amd64 || arm64)

// Package dynlib calls C libraries that are found at run time, without cgo: on linux/amd64 and
// linux/arm64. Here it opens none.
package dynlib

import (
	"errors"
	"runtime"
)

// Open opens nothing.
func Open(string) (uintptr, error) {
	return 0, errors.New("libraries are opened on linux/amd64 and linux/arm64; this is " + runtime.GOOS + "/" + runtime.GOARCH)
}

// Symbol finds nothing.
func Symbol(uintptr, string) uintptr { return 0 }

// Call cannot come: there is nothing to call.
func Call(uintptr, []uintptr) uintptr { panic("dynlib: a call without a library") }
