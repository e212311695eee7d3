package gpuwait

import (
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/enginetest/enginetest/internal/procfs"
)

// before reports whether a list shows h before x: the largest first, then by PID.
func (h Holder) before(x Holder) bool {
	return h.Bytes > x.Bytes || h.Bytes == x.Bytes && h.PID < x.PID
}

func largestFirst(holders []Holder) []Holder {
	out := slices.Clone(holders)
	sort.SliceStable(out, func(i, j int) bool { return out[i].Bytes > out[j].Bytes })
	return out
}

// Family reports whether a process belongs to the engine under test. It is asked while the process
// lives; a process that belonged to the family once belongs to it for good.
type Family func(pid int) bool

// Descendants is the family of the processes that are named and all that descend from them.
func Descendants(roots ...int) Family {
	return func(pid int) bool {
		return slices.ContainsFunc(roots, func(root int) bool { return pid == root || descends(pid, root) })
	}
}

// processTable is what an account asks of the operating system.
type processTable interface {
	// started tells a process from a later one with its number; 0 when it is not visible.
	started(pid int) int64
	// list returns the processes that are visible.
	list() []int
	// mapped reports whether a process has a GPU's device file mapped, which every process with
	// device memory has. known is false when its mappings cannot be read.
	mapped(pid int) (yes, known bool)
}

// proc is the processTable of Linux.
type proc struct{}

func (proc) started(pid int) int64 {
	st, _ := procfs.StatOf(pid)
	return st.Start
}

func (proc) list() (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (proc) mapped(pid int) (yes, known bool) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "maps"))
	if err != nil {
		_, alive := procfs.StatOf(pid)
		return false, !alive && onLinux()
	}
	return mapsGPU(string(b)), true
}

func onLinux() bool {
	_, ok := procfs.StatOf(os.Getpid())
	return ok
}

// mapsGPU reports whether the text of /proc/PID/maps names a GPU's device file. NVML maps none: it
// only opens them.
func mapsGPU(maps string) bool {
	for line := range strings.Lines(maps) {
		for _, dev := range []string{" /dev/nvidia", " /dev/kfd", " /dev/dri/renderD", " /dev/dxg"} {
			if strings.Contains(line, dev) {
				return true
			}
		}
	}
	return false
}
