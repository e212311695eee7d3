//go:build linux

package proc

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestListening(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer tcp.Close()
	six, err := net.Listen("tcp", "[::1]:0")
	path := filepath.Join(t.TempDir(), "s")
	local, err2 := net.Listen("unix", path)
	require.NoError(t, err2)
	defer local.Close()
	got := listening(os.Getpid())
	require.Contains(t, got, "tcp "+tcp.Addr().String())
	require.Contains(t, got, "unix "+path)
	if err == nil {
		require.Contains(t, got, "tcp "+six.Addr().String())
		_ = six.Close()
	}
	require.True(t, InUse(path))
	require.NotContains(t, listening(unix.Getppid()), "unix "+path)
}
