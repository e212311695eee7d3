package wire

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Pair makes two connected sockets that have no name, so no other process can reach them and
// nothing is left of them: one for this process, and a file for a child to inherit, which the
// caller closes once the child has started.
func Pair() (here *Conn, child *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	child = os.NewFile(uintptr(fds[1]), "core")
	mine := os.NewFile(uintptr(fds[0]), "link")
	defer mine.Close()
	if here, err = FromFile(mine); err != nil {
		return nil, nil, err
	}
	return here, child, nil
}

// FromFile makes a Conn of a socket; the file can be closed then. Processes that this one starts do
// not inherit the socket.
func FromFile(f *os.File) (*Conn, error) {
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return New(c), nil
}
