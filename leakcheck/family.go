package leakcheck

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/enginetest/enginetest/internal/procfs"
)

// Family lists the processes of an engine. It is called at every sample: workers come and go.
type Family func() []int

// Tree is the family of a process and all its descendants.
func Tree(pid int) Family {
	return func() []int { return append([]int{pid}, descendants(pid)...) }
}

// FamilySample is what the processes of a family hold together after one round. Memory that several
// processes share counts once (PSS).
type FamilySample struct {
	Core        int64 // resident memory of the process that has the most: an engine's core
	Resident    int64 // resident memory of all processes, which counts shared pages in each
	Anonymous   int64 // heaps and stacks, also what is swapped out
	Shared      int64 // shared memory: /dev/shm, memfd, System V
	Files       int64 // of mapped files; the kernel takes these pages back when it needs them
	Device      int64
	Descriptors int64
	Processes   int64
}

// process tells one from a later one with its number.
type process struct {
	pid   int
	start int64
}

func (p process) String() string { return fmt.Sprintf("pid %d (%s)", p.pid, procfs.CommandLine(p.pid)) }

// members lists the processes that live.
func (f Family) members() (out []process) {
	for _, pid := range f() {
		st, ok := procfs.StatOf(pid)
		if p := (process{pid, st.Start}); ok && !st.Dead() && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// sample adds up what the members hold; unreadable names one whose descriptors cannot be listed.
func (f Family) sample(cfg config) (s FamilySample, unreadable string, err error) {
	members := f.members()
	if slices.ContainsFunc(members, func(p process) bool { return p.pid == os.Getpid() }) {
		settle()
	}
	for _, p := range members {
		rollup := procfs.Read(p.pid, "smaps_rollup")
		if len(rollup) == 0 {
			if st, ok := procfs.StatOf(p.pid); !ok || st.Dead() || st.Start != p.start {
				continue // it has just ended
			}
			return s, "", fmt.Errorf("leakcheck: the memory of %v cannot be read: another user's process, or a system without /proc/PID/smaps_rollup", p)
		}
		s.Processes++
		resident := kilobytes(rollup, "Rss:")
		s.Core, s.Resident = max(s.Core, resident), s.Resident+resident
		s.Anonymous += kilobytes(rollup, "Pss_Anon:") + kilobytes(rollup, "SwapPss:")
		s.Shared += kilobytes(rollup, "Pss_Shmem:")
		s.Files += kilobytes(rollup, "Pss_File:")
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.pid))
		if err != nil {
			unreadable = p.String()
		}
		s.Descriptors += int64(len(fds))
	}
	if s.Processes == 0 {
		return s, "", fmt.Errorf("leakcheck: no process of the family is left to measure")
	}
	for _, b := range cfg.owners() {
		s.Device += b
	}
	return s, unreadable, nil
}

// kilobytes reads "Pss_Anon:     1234 kB".
func kilobytes(text []byte, name string) int64 {
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte(name)); ok {
			number, _, _ := strings.Cut(strings.TrimSpace(string(rest)), " ")
			n, _ := strconv.ParseInt(number, 10, 64)
			return n << 10
		}
	}
	return 0
}

// instrumented reports whether a member is this program, built with a sanitizer.
func (f Family) instrumented() bool {
	own, err := os.Readlink("/proc/self/exe")
	return instrumented && err == nil && slices.ContainsFunc(f.members(), func(p process) bool {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.pid))
		return err == nil && exe == own
	})
}

// place is where a process has memory: a mapped file, the C library's heap, anonymous memory.
type place struct {
	process
	name string
}

// places says how much memory every member has where.
func (f Family) places() map[place]int64 {
	out := map[place]int64{}
	for _, p := range f.members() {
		at := place{p, ""}
		for line := range bytes.Lines(procfs.Read(p.pid, "smaps")) {
			fields := strings.Fields(string(line))
			switch {
			case len(fields) >= 5 && !strings.HasSuffix(fields[0], ":"): // 7f00…-7f00… rw-p 00000000 00:00 0  [heap]
				at.name = placeName(strings.Join(fields[5:], " "))
			case len(fields) >= 2 && (fields[0] == "Pss:" || fields[0] == "SwapPss:"):
				n, _ := strconv.ParseInt(fields[1], 10, 64)
				out[at] += n << 10
			}
		}
	}
	return out
}

func placeName(path string) string {
	switch {
	case path == "":
		return "anonymous memory"
	case path == "[heap]":
		return "the C library's heap"
	case strings.HasPrefix(path, "[anon:"):
		return "anonymous memory " + path
	}
	return path
}
