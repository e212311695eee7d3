package connector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxUsers is how many may have a segment open at once.
const maxUsers = 1<<ownerBits - 1

// file is a mapped segment. Byte 0 of the file is locked, shared, by all that have it open, and
// alone by who makes or removes it; byte n by user n. The locks belong to the open file: the kernel
// releases them with its last descriptor.
type file struct {
	geometry
	f      *os.File
	path   string
	memory []byte
	id     int
}

func openFile(ctx context.Context, o *Options) (*file, error) {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		f, again, err := tryOpen(o)
		if !again {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("connector: %s: another process is opening or closing it: %w", o.Path, context.Cause(ctx))
		case <-time.After(wait):
		}
	}
}

// tryOpen opens a segment, or makes it; again is set when another one was in the way.
func tryOpen(o *Options) (_ *file, again bool, err error) {
	osFile, err := os.OpenFile(o.Path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, false, fmt.Errorf("connector: %w", err)
	}
	f := &file{f: osFile, path: o.Path}
	ok := false
	defer func() {
		if !ok {
			err = errors.Join(err, f.close())
		}
	}()
	info, err := osFile.Stat()
	if err != nil {
		return nil, false, fmt.Errorf("connector: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, false, &MismatchError{o.Path, "not a regular file"}
	}
	locked, err := f.enter(o)
	if err != nil || !locked {
		return nil, !locked, err
	}
	if !f.linked() { // it was removed before it was locked
		return nil, true, nil
	}
	if again, err := f.adopt(o); again || err != nil {
		return nil, again, err
	}
	ok = true
	return f, false, nil
}

// Remove removes the file of a segment that no one has open: of a process that was killed. What is no
// segment stays.
func Remove(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("connector: %w", err)
	}
	return (&file{f: f, path: path}).close()
}

// enter takes part in the segment, and makes it when no one else does.
func (f *file) enter(o *Options) (locked bool, err error) {
	alone, err := f.lock(0, unix.F_WRLCK)
	if err != nil {
		return false, err
	}
	if alone && f.linked() {
		if err := f.create(o); err != nil {
			return true, err
		}
	}
	return f.lock(0, unix.F_RDLCK)
}

// create makes the file an empty segment. A process that dies in it leaves one that is not ready.
func (f *file) create(o *Options) error {
	var first, page firstPage
	if n, err := f.f.ReadAt(first.bytes(), 0); n > 0 && (n < 8 || first.magic != magic) {
		start := first.bytes()[:min(n, 16)]
		return &MismatchError{f.path, fmt.Sprintf("not a KV segment: it begins with %s", strconv.Quote(string(start)))}
	} else if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("connector: %w", err)
	}
	g, err := geometryFor(o.bytes(), o.BlockBytes)
	if err != nil {
		return err
	}
	h := &page.header
	h.magic, h.blockBytes, h.slots, h.model = magic, g.blockBytes, g.slots, o.Model
	if _, err := f.f.WriteAt(page.bytes(), 0); err != nil {
		return fmt.Errorf("connector: %w", err)
	}
	if err := f.f.Truncate(pageSize); err != nil { // what is added is zero
		return fmt.Errorf("connector: %w", err)
	}
	if err := f.reserve(g.size()); err != nil {
		return fmt.Errorf("connector: %s: %d bytes: %w", f.path, g.size(), err)
	}
	h.ready.Store(1)
	if _, err := f.f.WriteAt(page.bytes(), 0); err != nil {
		return fmt.Errorf("connector: %w", err)
	}
	return nil
}

// reserve makes the file so large, with memory for all of it: a page that could not be had later
// would be a SIGBUS.
func (f *file) reserve(size int64) error {
	for {
		switch err := unix.Fallocate(int(f.f.Fd()), 0, 0, size); err {
		case nil:
			return nil
		case unix.EINTR:
		default:
			return errors.Join(err, f.f.Truncate(pageSize))
		}
	}
}

// adopt maps a segment that someone has made.
func (f *file) adopt(o *Options) (again bool, err error) {
	var page firstPage
	h := &page.header
	if n, err := f.f.ReadAt(page.bytes(), 0); err != nil && n < pageSize && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("connector: %w", err)
	}
	if h.magic != magic || h.ready.Load() != 1 {
		return true, nil // who made it has died of it
	}
	info, err := f.f.Stat()
	if err != nil {
		return false, fmt.Errorf("connector: %w", err)
	}
	f.geometry = geometry{h.blockBytes, h.slots}
	if err := f.check(o, h, info.Size()); err != nil {
		return false, err
	}
	if o.Before != nil {
		if err := o.Before(Owner, f.size()); err != nil {
			return false, err
		}
	}
	if f.id, err = f.number(); err != nil {
		return false, err
	}
	f.memory, err = unix.Mmap(int(f.f.Fd()), 0, int(f.size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return false, fmt.Errorf("connector: mapping %s: %w", f.path, err)
	}
	return false, nil
}

// check refuses a segment of another model, or of other sizes.
func (f *file) check(o *Options, h *header, size int64) error {
	var why string
	switch want, err := geometryFor(o.bytes(), o.BlockBytes); {
	case err != nil:
		return err
	case !f.valid(size):
		why = fmt.Sprintf("not a KV segment: %d blocks of %d bytes in a file of %d", h.slots, h.blockBytes, size)
	case h.blockBytes != o.BlockBytes:
		why = fmt.Sprintf("its blocks have %d bytes, and those of this engine %d", h.blockBytes, o.BlockBytes)
	case h.model != o.Model:
		why = fmt.Sprintf("its blocks are of another model: %x, and not %x", h.model[:4], o.Model[:4])
	case o.Bytes > 0 && want.slots != h.slots:
		why = fmt.Sprintf("it has room for %d blocks, and not for %d", h.slots, want.slots)
	default:
		return nil
	}
	return &MismatchError{f.path, why}
}

// number finds a number that no other user has.
func (f *file) number() (int, error) {
	for id := 1; id <= maxUsers; id++ {
		if free, err := f.lock(int64(id), unix.F_WRLCK); err != nil || free {
			return id, err
		}
	}
	return 0, fmt.Errorf("connector: %s: %d engines have it open, the most that can", f.path, maxUsers)
}

// lock locks a byte, or unlocks it, unless another one is in the way.
func (f *file) lock(at int64, kind int16) (bool, error) {
	err := unix.FcntlFlock(f.f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Start: at, Len: 1})
	if err == unix.EAGAIN || err == unix.EACCES {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("connector: locking %s: %w", f.path, err)
	}
	return true, nil
}

// alive reports whether a user's byte is locked. When that cannot be known, it is.
func (f *file) alive(id int) bool {
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(id), Len: 1}
	return unix.FcntlFlock(f.f.Fd(), unix.F_OFD_GETLK, &l) != nil || l.Type != unix.F_UNLCK
}

// linked reports whether the path is still this file's.
func (f *file) linked() bool {
	mine, err := f.f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(f.path)
	return err == nil && os.SameFile(mine, named)
}

// close unmaps the file, and removes it when no one else has it open. What it cannot unmap stays
// open, and is in use for the others.
func (f *file) close() error {
	if f.memory != nil {
		if err := unix.Munmap(f.memory); err != nil {
			return fmt.Errorf("connector: unmapping %s: %w", f.path, err)
		}
		f.memory = nil
	}
	if f.id != 0 {
		_, _ = f.lock(int64(f.id), unix.F_UNLCK) // which goes with the descriptor at the latest
		f.id = 0
	}
	// Of several that close at once, each releases its lock before it asks: one of them is alone then.
	_, _ = f.lock(0, unix.F_UNLCK)
	var err error
	if alone, _ := f.lock(0, unix.F_WRLCK); alone && f.ours() && f.linked() {
		err = os.Remove(f.path)
	}
	return errors.Join(err, f.f.Close())
}

// ours reports whether the file is empty or a segment, and not what a mistaken path names.
func (f *file) ours() bool {
	var first firstPage
	n, err := f.f.ReadAt(first.bytes(), 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return false
	}
	return n == 0 || n >= 8 && first.magic == magic
}

func (f *file) address() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(f.memory))) }
