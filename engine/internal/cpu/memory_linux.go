package cpu

import (
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const mapNoReserve = unix.MAP_NORESERVE

// hugeSize is the least that can have a large page.
const hugeSize = 2 << 20

func adviseHuge(b []byte) {
	if len(b) >= hugeSize {
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // refused where the kernel has none
	}
}

// machineMemory is what a new allocation could use, and the total: MemAvailable and MemTotal, or
// less where a control group says so.
func machineMemory() (free, total int64, err error) { return machineMemoryAt("/") }

// machineMemoryAt reads proc and sys below root.
func machineMemoryAt(root string) (free, total int64, err error) {
	info, err := keyed(path.Join(root, "proc/meminfo"))
	if err != nil {
		return 0, 0, fmt.Errorf("cpu: free memory: %w", err)
	}
	free, total = info["MemAvailable:"]*1024, info["MemTotal:"]*1024
	if free == 0 || total == 0 {
		return 0, 0, fmt.Errorf("cpu: free memory: no MemAvailable or MemTotal in %s", path.Join(root, "proc/meminfo"))
	}
	for _, g := range controlGroups(root) {
		limit, err := number(path.Join(g.dir, g.limit))
		if err != nil || limit >= total { // "max", or version 1's huge number
			continue
		}
		used, err := number(path.Join(g.dir, g.used))
		if err != nil {
			continue
		}
		stat, _ := keyed(path.Join(g.dir, "memory.stat"))
		used -= stat[g.cache] // file cache that the kernel drops first
		total, free = limit, min(free, max(0, limit-used))
	}
	return free, total, nil
}

type controlGroup struct{ dir, limit, used, cache string }

// controlGroups lists the memory groups of this process, its own and those above it, in both
// versions' files. In a container the path of /proc/self/cgroup may not exist below the mount; the
// mount's root is then the group.
func controlGroups(root string) (groups []controlGroup) {
	b, err := os.ReadFile(path.Join(root, "proc/self/cgroup"))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		g := controlGroup{limit: "memory.max", used: "memory.current", cache: "inactive_file"}
		mount := path.Join(root, "sys/fs/cgroup")
		switch {
		case f[0] == "0" && f[1] == "":
		case strings.Contains(","+f[1]+",", ",memory,"):
			g = controlGroup{
				limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes",
				cache: "total_inactive_file",
			}
			mount = path.Join(mount, "memory")
		default:
			continue
		}
		for p := path.Clean("/" + f[2]); ; p = path.Dir(p) {
			g.dir = path.Join(mount, p)
			groups = append(groups, g)
			if p == "/" {
				break
			}
		}
	}
	return groups
}

func number(file string) (int64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

// keyed reads a file of lines "name number …".
func keyed(file string) (map[string]int64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	m := map[string]int64{}
	for line := range strings.Lines(string(b)) {
		if w := strings.Fields(line); len(w) >= 2 {
			if n, err := strconv.ParseInt(w[1], 10, 64); err == nil {
				m[w[0]] = n
			}
		}
	}
	return m, nil
}
