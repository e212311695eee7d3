package proc

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// listening names the sockets that pid accepts connections on.
func listening(pid int) []string {
	inodes := map[string]bool{}
	fds, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/fd/*")
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil {
			if ino, ok := strings.CutPrefix(target, "socket:["); ok {
				inodes[strings.TrimSuffix(ino, "]")] = true
			}
		}
	}
	if len(inodes) == 0 {
		return nil
	}
	var found []string
	base := "/proc/" + strconv.Itoa(pid) + "/net/" // the process may live in another network namespace
	for _, table := range []string{"tcp", "tcp6"} {
		for _, f := range rows(base + table) {
			// sl local_address rem_address st tx:rx tr:tm retrnsmt uid timeout inode; 0A is LISTEN
			if len(f) > 9 && f[3] == "0A" && inodes[f[9]] {
				found = append(found, "tcp "+address(f[1]))
			}
		}
	}
	for _, f := range rows(base + "unix") {
		// Num RefCount Protocol Flags Type St Inode Path; the flag 10000 means listening
		if len(f) > 7 && f[3] == "00010000" && inodes[f[6]] {
			found = append(found, "unix "+f[7])
		}
	}
	slices.Sort(found)
	return found
}

func rows(path string) [][]string {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var table [][]string
	for line := range strings.Lines(string(b)) {
		table = append(table, strings.Fields(line))
	}
	return table
}

// address decodes "0100007F:1F90": 32-bit words in the machine's byte order (little endian), then
// the port.
func address(s string) string {
	host, port, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(host)
	n, err2 := strconv.ParseUint(port, 16, 16)
	if err != nil || err2 != nil || len(b)%4 != 0 {
		return s
	}
	for i := 0; i < len(b); i += 4 {
		slices.Reverse(b[i : i+4])
	}
	a, ok := netip.AddrFromSlice(b)
	if !ok {
		return s
	}
	return fmt.Sprint(netip.AddrPortFrom(a, uint16(n)))
}
