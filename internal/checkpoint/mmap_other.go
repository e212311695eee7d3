//go:build !unix

package checkpoint

import (
	"io"
	"os"
)

// mapFile reads the file into memory, where there is no mmap.
func mapFile(f *os.File, size int) (data []byte, unmap func() error, err error) {
	data, err = io.ReadAll(io.LimitReader(f, int64(size)))
	if err == nil && len(data) < size {
		err = io.ErrUnexpectedEOF
	}
	return data, func() error { return nil }, err
}
