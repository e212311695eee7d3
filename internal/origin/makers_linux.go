package origin

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

var errNotWatched = errors.New("it is not watched")

// group is a fanotify group that reports new entries of one folder with their makers.
type group int

// newGroup watches a folder. FAN_UNLIMITED_MARKS is for those only to whom the kernel tells every
// maker, and changes nothing else here: whether it is refused says which it is.
func newGroup(dir string) (g group, every bool, err error) {
	const flags = unix.FAN_CLASS_NOTIF | unix.FAN_REPORT_DFID_NAME | unix.FAN_NONBLOCK | unix.FAN_CLOEXEC
	fd, err := unix.FanotifyInit(flags|unix.FAN_UNLIMITED_MARKS, unix.O_RDONLY)
	every = err == nil
	if err == unix.EPERM {
		fd, err = unix.FanotifyInit(flags, unix.O_RDONLY)
	}
	if err != nil {
		return -1, false, fmt.Errorf("fanotify_init: %w", err)
	}
	err = unix.FanotifyMark(fd, unix.FAN_MARK_ADD|unix.FAN_MARK_ONLYDIR,
		unix.FAN_CREATE|unix.FAN_MOVED_TO|unix.FAN_ONDIR, unix.AT_FDCWD, dir)
	if err != nil {
		_ = unix.Close(fd)
		return -1, false, fmt.Errorf("fanotify_mark: %w", err)
	}
	return group(fd), every, nil
}

func (g group) is(fd int) bool { return int(g) == fd }

func (g group) close() {
	if g >= 0 {
		_ = unix.Close(int(g))
	}
}

// read reports the events that wait: who made which entry, or that some were lost.
func (g group) read(event func(name string, pid int, lost bool)) {
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(int(g), buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return
		}
		for b := buf[:n]; ; {
			size, ok := parseEvent(b, event)
			if !ok {
				break
			}
			b = b[size:]
		}
	}
}

// parseEvent reads a fanotify_event_metadata, which ends in the process, and the name after it.
func parseEvent(b []byte, event func(name string, pid int, lost bool)) (size int, ok bool) {
	const header = 24
	if len(b) < header {
		return 0, false
	}
	size = int(binary.NativeEndian.Uint32(b))
	if size < header || size > len(b) {
		return 0, false
	}
	if binary.NativeEndian.Uint64(b[8:])&unix.FAN_Q_OVERFLOW != 0 {
		event("", 0, true)
		return size, true
	}
	if name := entryName(b[header:size]); name != "" {
		event(name, int(int32(binary.NativeEndian.Uint32(b[20:]))), false) //nolint:gosec // a pid_t
	}
	return size, true
}

// entryName reads a fanotify_event_info_fid: its type and size, the file system, a file handle with
// a size of its own, the name.
func entryName(b []byte) string {
	const fixed, withName = 4 + 8 + 8, 2 // FAN_EVENT_INFO_TYPE_DFID_NAME
	if len(b) < fixed || b[0] != withName {
		return ""
	}
	at := fixed + int(binary.NativeEndian.Uint32(b[12:]))
	if at > len(b) {
		return ""
	}
	name, _, _ := bytes.Cut(b[at:], []byte{0})
	return string(name)
}

// forget drops the entries that are gone.
func (f *folder) forget() {
	for name := range f.made {
		if _, err := os.Lstat(filepath.Join(f.dir, name)); errors.Is(err, os.ErrNotExist) {
			delete(f.made, name)
		}
	}
}
