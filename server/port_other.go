//go:build !linux

package server

import "net"

// reserve takes a free port of 127.0.0.1. It is not held: a server that finds it taken is started
// again with another.
func reserve() (port int, release func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, nil, err
	}
	return l.Addr().(*net.TCPAddr).Port, func() {}, l.Close()
}
