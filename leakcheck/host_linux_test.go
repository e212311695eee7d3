package leakcheck

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestHostOfC plants what C code opens past Go: each is found, and when it is closed nothing is
// left. Go's own poller is no finding.
func TestHostOfC(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // Go's poller watches it
	require.NoError(t, err)
	defer l.Close()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "blocks"), 0o755))
	for _, row := range []struct {
		name  string
		plant func(t *testing.T) (undo func())
		want  []string
	}{
		{"an epoll descriptor, and an eventfd that it watches", func(t *testing.T) func() {
			epoll, err := unix.EpollCreate1(0)
			require.NoError(t, err)
			event, err := unix.Eventfd(0, 0)
			require.NoError(t, err)
			require.NoError(t, unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, event,
				&unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(event)}))
			return func() { unix.Close(epoll); unix.Close(event) }
		}, []string{"anon_inode:[eventpoll]", "anon_inode:[eventfd]"}},
		{"code in a memfd", func(t *testing.T) func() {
			fd, err := unix.MemfdCreate("jit", 0)
			require.NoError(t, err)
			defer unix.Close(fd)
			require.NoError(t, unix.Ftruncate(fd, 4096))
			code, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_SHARED)
			require.NoError(t, err)
			return func() { assert.NoError(t, unix.Munmap(code)) }
		}, []string{"/memfd:jit (deleted) is mapped"}},
		{"a System V segment", func(t *testing.T) func() {
			id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 1<<20, unix.IPC_CREAT|0o600)
			if err != nil {
				t.Skip(err)
			}
			if _, err := os.Stat("/proc/sysvipc/shm"); err != nil {
				t.Skip(err)
			}
			return func() {
				_, err := unix.SysvShmCtl(id, unix.IPC_RMID, nil)
				assert.NoError(t, err)
			}
		}, []string{"SysV segment with key 0x0 is left behind", "1048576 bytes", "ipcrm -m "}},
		{"a file in a subfolder", func(t *testing.T) func() {
			path := filepath.Join(dir, "blocks", "kv.bin")
			require.NoError(t, os.WriteFile(path, make([]byte, 100), 0o600))
			return func() { assert.NoError(t, os.Remove(path)) }
		}, []string{"kv.bin is left behind (100 bytes)"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			before, err := Snapshot(dir)
			require.NoError(t, err)
			undo := row.plant(t)
			err = before.Restored(t.Context(), brief)
			undo()
			require.Error(t, err)
			t.Log(err)
			for _, want := range row.want {
				assert.ErrorContains(t, err, want)
			}
			require.NoError(t, before.Restored(t.Context(), Patience(time.Minute)))
		})
	}
}

var left struct {
	file *os.File
	conn net.Listener
}

// TestOwnerOfADescriptor: a descriptor comes with what keeps it.
func TestOwnerOfADescriptor(t *testing.T) {
	before, err := Snapshot()
	require.NoError(t, err)
	left.file, err = os.Open(os.DevNull)
	require.NoError(t, err)
	left.conn, err = net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	accepted := make(chan bool)
	go func(l net.Listener) { _, _ = l.Accept(); close(accepted) }(left.conn)
	c, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	err = before.Restored(t.Context(), brief)
	var found *Error
	require.ErrorAs(t, err, &found)
	require.Len(t, found.Findings, 3, "%v", err)
	for _, f := range found.Findings {
		switch {
		case f.Kind == KindSocket:
			assert.NotEmpty(t, f.Path, "%v", err)
		case f.Name == fmt.Sprintf("fd %d %s", c, os.DevNull):
			assert.Contains(t, f.Note, "no os.File and no connection of Go has it")
		default:
			require.NotEmpty(t, f.Path, "%v", err)
			assert.Equal(t, "github.com/enginetest/enginetest/leakcheck.left", f.Path[0].Name)
			assert.Contains(t, f.Detail, "*os.File")
		}
	}
	require.NoError(t, unix.Close(c))
	require.NoError(t, left.file.Close())
	require.NoError(t, left.conn.Close())
	<-accepted
	require.NoError(t, before.Restored(t.Context(), Patience(time.Minute)))
}
