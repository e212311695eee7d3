package server

import (
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// reserve takes a free port of 127.0.0.1 and holds it without listening. No other program is then
// given the port by the kernel, and a server that sets SO_REUSEADDR or SO_REUSEPORT, as nearly all
// do, can listen on it meanwhile.
func reserve() (port int, release func(), err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil, os.NewSyscallError("socket", err)
	}
	release = sync.OnceFunc(func() { _ = unix.Close(fd) })
	defer func() {
		if err != nil {
			release()
		}
	}()
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte(net.IPv4(127, 0, 0, 1).To4())}); err != nil {
		return 0, nil, os.NewSyscallError("bind", err)
	}
	// only now: the kernel chose a port that is free altogether
	for _, opt := range []int{unix.SO_REUSEADDR, unix.SO_REUSEPORT} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt, 1); err != nil {
			return 0, nil, os.NewSyscallError("setsockopt", err)
		}
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return 0, nil, os.NewSyscallError("getsockname", err)
	}
	return name.(*unix.SockaddrInet4).Port, release, nil
}
