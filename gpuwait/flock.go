//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package gpuwait

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// ownFolder refuses a folder that another user could have prepared.
func ownFolder(dir string) error {
	fi, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !fi.IsDir() || !ok || int(st.Uid) != os.Getuid() || fi.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s is %s, not a folder that only user %d can write", dir, fi.Mode(), os.Getuid())
	}
	return nil
}

// flock opens and locks a file without waiting; it returns nil when another process has it. The
// descriptor is close-on-exec.
func flock(path string, how, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("gpuwait: lock file: %w", err)
	}
	for {
		err = syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err == nil {
		return f, nil
	}
	_ = f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, nil
	}
	return nil, fmt.Errorf("gpuwait: lock %s: %w", path, err)
}

func lockFile(dir, uuid string) (*os.File, error) {
	path, err := lockPath(dir, uuid)
	if err != nil {
		return nil, err
	}
	return flock(path, syscall.LOCK_EX, os.O_RDWR|os.O_CREATE)
}

// gateWait is far longer than any process keeps the gate.
const gateWait = 100 * time.Millisecond

// openGate takes the folder's gate, under which devices are chosen and taken, or looked at: all or
// none, and no process sees half of it. It returns nil when the gate stays taken for gateWait.
func openGate(dir string) (*os.File, error) {
	for end := time.Now().Add(gateWait); ; time.Sleep(time.Millisecond) {
		gate, err := flock(gatePath(dir), syscall.LOCK_EX, os.O_RDWR|os.O_CREATE)
		if gate != nil || err != nil || !time.Now().Before(end) {
			return gate, err
		}
	}
}

// isFree reports whether a lock is free. It looks under the gate, so that looking does not make
// another process's try fail.
func isFree(dir, path string) (bool, error) {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	gate, err := openGate(dir)
	if err != nil {
		return false, err
	}
	if gate != nil {
		defer func() { _ = gate.Close() }()
	}
	f, err := flock(path, syscall.LOCK_SH, os.O_RDONLY)
	if f != nil {
		_ = f.Close()
	}
	return f != nil, err
}
