package procfs

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestSegments(t *testing.T) {
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 8192, unix.IPC_CREAT|0o600)
	if err != nil {
		t.Skipf("no System V shared memory here: %v", err)
	}
	defer unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	want := Segment{ID: id, Size: 8192, Maker: os.Getpid()}
	require.Contains(t, Segments(), want)

	attached, err := unix.SysvShmAttach(id, 0, 0)
	require.NoError(t, err)
	want.Attached = 1
	assert.Contains(t, Segments(), want)
	require.NoError(t, unix.SysvShmDetach(attached))
}

func TestSegmentsThatCannotBeRead(t *testing.T) {
	rows := [][]string{
		{"1", "2", "600", "8192", "77"},
		{"1", "x", "600", "8192", "77", "0", "0"},
		{"-1", "2", "600", "8192", "77", "0", "3"},
	}
	assert.Equal(t, []Segment{{Key: 0xffffffff, ID: 2, Size: 8192, Maker: 77, Attached: 3}}, segments(rows))
}
