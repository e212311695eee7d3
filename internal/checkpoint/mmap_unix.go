//go:build unix

package checkpoint

import (
	"os"

	"golang.org/x/sys/unix"
)

// mapFile maps size bytes of f for reading. unmap releases them.
func mapFile(f *os.File, size int) (data []byte, unmap func() error, err error) {
	data, err = unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, os.NewSyscallError("mmap", err)
	}
	adviseHuge(data)
	return data, func() error { return os.NewSyscallError("munmap", unix.Munmap(data)) }, nil
}
