//go:build unix

package cpu

import "golang.org/x/sys/unix"

// mapMemory reserves address space only: pages come, zeroed, when they are first touched.
func mapMemory(n int) ([]byte, error) {
	if n == 0 {
		return []byte{}, nil
	}
	return unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|mapNoReserve)
}

func unmapMemory(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	return unix.Munmap(b)
}
