package proc

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// oomKills reads the counters of OOM kills that can be read: of this process's memory cgroup, and
// of the whole machine.
func oomKills() map[string]int {
	counts := map[string]int{}
	if file := oomFile(); file != "" {
		if n, ok := oomCount(file); ok {
			counts["of this cgroup"] = n
		}
	}
	if n, ok := oomCount("/proc/vmstat"); ok {
		counts["of this machine"] = n
	}
	return counts
}

// oomRise describes the most telling counter that rose.
func oomRise(before, after map[string]int) string {
	for _, scope := range []string{"of this cgroup", "of this machine"} {
		if b, ok := before[scope]; ok && after[scope] > b {
			return fmt.Sprintf("the oom_kill counter %s rose from %d to %d", scope, b, after[scope])
		}
	}
	return ""
}

func oomCount(file string) (int, bool) {
	f, err := os.Open(file)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if n, ok := strings.CutPrefix(s.Text(), "oom_kill "); ok {
			v, err := strconv.Atoi(n)
			return v, err == nil
		}
	}
	return 0, false
}

// oomFile finds memory.events (cgroup v2) or memory.oom_control (v1) of this process.
func oomFile() string {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		var candidates []string
		switch {
		case f[0] == "0":
			candidates = []string{"/sys/fs/cgroup" + f[2] + "/memory.events", "/sys/fs/cgroup/memory.events"}
		case hasField(f[1], "memory"):
			candidates = []string{
				"/sys/fs/cgroup/memory" + f[2] + "/memory.oom_control",
				"/sys/fs/cgroup/memory/memory.oom_control",
			}
		}
		for _, c := range candidates {
			if _, ok := oomCount(filepath.Clean(c)); ok {
				return filepath.Clean(c)
			}
		}
	}
	return ""
}

func hasField(list, name string) bool {
	for f := range strings.SplitSeq(list, ",") {
		if f == name {
			return true
		}
	}
	return false
}
