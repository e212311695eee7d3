package procfs_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/internal/procfs"
)

func TestSockets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	unix, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer unix.Close()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer tcp.Close()
	client, err := net.Dial("tcp", tcp.Addr().String())
	require.NoError(t, err)
	defer client.Close()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer udp.Close()
	var found []string
	for _, s := range procfs.Sockets(os.Getpid()) {
		found = append(found, s.String())
		assert.NotEmpty(t, s.Inode)
	}
	for _, want := range []string{
		"unix " + path + " listening",
		"tcp " + tcp.Addr().String() + " listening",
		"tcp " + client.LocalAddr().String() + " connected to " + tcp.Addr().String(),
		"udp " + udp.LocalAddr().String(),
	} {
		assert.Contains(t, found, want)
	}
	assert.Empty(t, procfs.Sockets(1<<30), "no such process")
}
