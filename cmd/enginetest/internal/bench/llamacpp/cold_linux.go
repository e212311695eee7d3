package main

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// cold puts a file on disk and out of the page cache. Each side then loads its own as after a
// reboot: in what size of pages the cache holds the weights is worth a quarter of the speed of
// decoding, and must not depend on how this program happened to write them.
func cold(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
}
