// Package kernels holds the device code of the bundled engine: CUDA C sources, and the images that
// the script build makes of them. Using them needs neither a toolkit nor a header.
package kernels

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"fmt"
	"io"
)

//go:embed kernels.sm_80.ptx.gz
var ptx []byte

//go:embed variants.sm_80.ptx.gz
var variants []byte

//go:embed kernels.sm_80.cubin.gz
var cubin80 []byte

//go:embed kernels.sm_90.cubin.gz
var cubin90 []byte

// Image is the best image for a device of this compute capability: machine code where there is
// some, else PTX. Devices below 8.0 lack the instructions that the kernels need.
func Image(major, minor int) (name string, image []byte, err error) {
	switch {
	case major < 8:
		return "", nil, fmt.Errorf("kernels: the device has compute capability %d.%d, want at least 8.0", major, minor)
	case major == 9 && minor == 0:
		return unzip("kernels.sm_90.cubin", cubin90)
	case major == 8: // machine code of 8.0 runs on every 8.x
		return unzip("kernels.sm_80.cubin", cubin80)
	}
	return PTX()
}

// PTX is the image for any device from 8.0 on: the driver compiles it once (seconds) and keeps the
// result in ~/.nv.
func PTX() (name string, image []byte, err error) { return unzip("kernels.sm_80.ptx", ptx) }

// Variants is the image of what some architectures compute beside the rest, for any device from 8.0
// on. It is PTX that a driver compiles in milliseconds. Its kernels may not be launched as
// programmatic dependents.
func Variants() (name string, image []byte, err error) { return unzip("variants.sm_80.ptx", variants) }

func unzip(name string, data []byte) (string, []byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return "", nil, fmt.Errorf("kernels: %s: %w", name, err)
	}
	image, err := io.ReadAll(z)
	if err != nil {
		return "", nil, fmt.Errorf("kernels: %s: %w", name, err)
	}
	return name, image, nil
}
