package server_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/enginetest/enginetest/server"
)

// bound makes a socket as a server does, and binds it to a port of 127.0.0.1; with port 0, the
// kernel may only choose from one.
func bound(t *testing.T, port, only int, options ...int) error {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	for _, o := range options {
		require.NoError(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, o, 1))
	}
	if only != 0 {
		const ipLocalPortRange = 51 // since Linux 6.3
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, ipLocalPortRange, only<<16|only); errors.Is(err,
			syscall.ENOPROTOOPT) {
			t.Skip("this kernel cannot limit the ports that it chooses from")
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	return unix.Listen(fd, 1)
}

func TestReserve(t *testing.T) {
	port, release, err := server.Reserve()
	require.NoError(t, err)
	defer release()
	t.Run("the server can listen", func(t *testing.T) {
		require.NoError(t, bound(t, port, 0, unix.SO_REUSEADDR))
		require.NoError(t, bound(t, port, 0, unix.SO_REUSEPORT))
		require.NoError(t, bound(t, port, 0, unix.SO_REUSEADDR, unix.SO_REUSEPORT))
	})
	t.Run("no one else is given the port", func(t *testing.T) {
		require.ErrorIs(t, bound(t, 0, port), syscall.EADDRINUSE)
		require.ErrorIs(t, bound(t, 0, port, unix.SO_REUSEADDR), syscall.EADDRINUSE)
	})
}
