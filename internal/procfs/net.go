package procfs

import (
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Socket is a row of the tables in /proc/PID/net.
type Socket struct {
	Kind          string // "tcp", "udp" or "unix"
	Inode         string
	Local, Remote netip.AddrPort // not of "unix"
	Path          string         // of "unix"; "" when it is bound to none
	Listening     bool
}

// Sockets lists the sockets in the network namespace of a process.
func Sockets(pid int) []Socket {
	var out []Socket
	dir := filepath.Join("/proc", strconv.Itoa(pid), "net")
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6"} {
		for _, f := range Table(filepath.Join(dir, table)) {
			// sl local_address rem_address st tx:rx tr:tm retrnsmt uid timeout inode
			if len(f) > 9 {
				const listen = "0A"
				out = append(out, Socket{
					Kind: strings.TrimSuffix(table, "6"), Inode: f[9],
					Local: address(f[1]), Remote: address(f[2]), Listening: f[3] == listen,
				})
			}
		}
	}
	for _, f := range Table(filepath.Join(dir, "unix")) {
		// Num RefCount Protocol Flags Type St Inode Path
		if len(f) > 6 {
			const listen = "00010000"
			s := Socket{Kind: "unix", Inode: f[6], Listening: f[3] == listen}
			if len(f) > 7 {
				s.Path = f[7]
			}
			out = append(out, s)
		}
	}
	return out
}

// Name returns "tcp 127.0.0.1:8080" or "unix /run/x.sock".
func (s Socket) Name() string {
	switch {
	case s.Kind == "unix" && s.Path == "":
		return s.Kind
	case s.Kind == "unix":
		return s.Kind + " " + s.Path
	}
	return s.Kind + " " + s.Local.String()
}

// String is the name, and what the socket is for: "tcp 127.0.0.1:8080 listening".
func (s Socket) String() string {
	switch {
	case s.Listening:
		return s.Name() + " listening"
	case s.Remote.Port() != 0:
		return s.Name() + " connected to " + s.Remote.String()
	}
	return s.Name()
}

// Table returns the fields of a table of the kernel's, without the line that names them.
func Table(path string) (rows [][]string) {
	text, _ := os.ReadFile(path)
	_, body, _ := strings.Cut(string(text), "\n")
	for line := range strings.Lines(body) {
		rows = append(rows, strings.Fields(line))
	}
	return rows
}

// address reads "0100007F:1F90": words of four bytes in the machine's order, the port in
// hexadecimal.
func address(s string) netip.AddrPort {
	host, port, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(host)
	if err != nil {
		return netip.AddrPort{}
	}
	for i := 0; i+4 <= len(b); i += 4 {
		slices.Reverse(b[i : i+4])
	}
	ip, ok := netip.AddrFromSlice(b)
	p, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(p))
}
