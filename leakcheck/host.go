package leakcheck

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/enginetest/enginetest/internal/backoff"
	"github.com/enginetest/enginetest/leakcheck/internal/retain"
)

// ErrNoHost is returned where the system does not tell what a process holds (everywhere but on
// Linux with /proc).
var ErrNoHost = errors.New("leakcheck: file descriptors, mappings and processes can only be listed on Linux with /proc")

// HostState is what a process holds of its host at one moment: each thing under a key that is the
// same in every snapshot.
type HostState struct {
	dirs  []string
	items map[string]hostItem
}

// hostItem is one thing: `fd 7` → "socket: tcp 127.0.0.1:8080 listening".
type hostItem struct {
	kind   Kind
	name   string // as printed; "" for an entry of a shared folder, which is described when it is a finding
	what   string // without numbers that differ from run to run; Allow matches it
	path   string // of a file, mapping or bound socket
	shared bool   // an entry of a folder that other processes use too,
	sure   bool   // but in use here, or named after one of the processes here
	hidden bool   // never a finding

	pid     int // of a process, or of who made a segment
	started int64
}

// Snapshot lists what this process holds of its host: open file descriptors and what they are,
// sockets and listening ports, mapped files, devices and shared memory, entries of /dev/shm that
// are in use here or named after this process, System V segments, child processes and their
// descendants, and all entries of the given folders and their subfolders. What others may have put
// into /dev/shm and the folder for temporary files is noted for [HostState.RestoredFor].
func Snapshot(dirs ...string) (*HostState, error) { return snapshot(dirs) }

// Diff lists what is in after and was not in before, processes first.
func Diff(before, after *HostState) []Finding {
	findings, _ := sortClaimed(before, after, Claims{All: true})
	return findings
}

// signature is "socket: tcp 127.0.0.1:80 listening".
func signature(kind Kind, what string) string {
	return string(kind) + ": " + strings.TrimPrefix(what, string(kind)+": ")
}

// newDescriptors counts the descriptors and sockets that are open now and were not before, by what
// they are.
func newDescriptors(before *HostState) map[string]int {
	out := map[string]int{}
	now, err := Snapshot()
	if before == nil || err != nil {
		return out
	}
	for _, f := range Diff(before, now) {
		if f.Kind == KindDescriptor || f.Kind == KindSocket {
			out[f.accept]++
		}
	}
	return out
}

// Restored waits until the process holds nothing that it did not hold at the snapshot, and returns
// nil; otherwise a [*Error] that names each new descriptor, socket, mapping, process or file. All
// of it belongs to the whole process: tests that run in parallel see each other's.
func (h *HostState) Restored(ctx context.Context, opts ...Option) error {
	_, err := h.RestoredFor(ctx, Claims{All: true}, opts...)
	return err
}

// RestoredFor is Restored for one of several owners in this process: it waits for what the claims
// cover, and returns what else is new.
func (h *HostState) RestoredFor(ctx context.Context, claims Claims, opts ...Option) (others []Finding, err error) {
	cfg := configure(opts)
	watch, looks := startWatch(), backoff.New(time.Millisecond, 50*time.Millisecond)
	for {
		now, err := snapshot(h.dirs)
		if err != nil {
			return nil, err
		}
		mine, others := sortClaimed(h, now, claims)
		left := newError(mine, cfg.allow)
		if left == nil || watch.spent() >= cfg.patience || ctx.Err() != nil {
			return unallowed(others, cfg), withOwners(left, cfg)
		}
		_ = looks.Wait(ctx) // the context is looked at above
	}
}

// withOwners adds to the findings about descriptors what keeps the os.File or connection that has
// each of them.
func withOwners(err error, cfg config) error {
	e, ok := errors.AsType[*Error](err)
	if !ok || cfg.noPaths {
		return err
	}
	var fds []int
	which := map[int]int{}
	for i, f := range e.Findings {
		var fd int
		if n, _ := fmt.Sscanf(f.Name, "fd %d", &fd); n == 1 && (f.Kind == KindDescriptor || f.Kind == KindSocket) {
			fds, which[fd] = append(fds, fd), i
		}
	}
	if len(fds) == 0 {
		return err
	}
	paths, failed := retain.ExplainDescriptors(fds)
	if failed != nil {
		return err // what is open is known, if not who keeps it
	}
	for fd, i := range which {
		f := &e.Findings[i]
		switch p, ok := paths[fd]; {
		case strings.Contains(f.Name, "[pidfd]"):
			f.Note = joinNotes(f.Note, "an os.Process has it until Wait or Release")
		case !ok:
			f.Note = joinNotes(f.Note, "no os.File and no connection of Go has it: C, a system call or an os.Root opened it")
		case len(p.Steps) > 0:
			f.Path = stepsOf(p)
			f.Detail = retain.Format(p.Steps)
		}
	}
	return err
}

// kindOfFile sorts the target of a descriptor or mapping.
func kindOfFile(path string) Kind {
	switch {
	case strings.HasPrefix(path, "/dev/shm/"), strings.HasPrefix(path, "/memfd:"), strings.HasPrefix(path, "/SYSV"):
		return KindSharedMemory
	default:
		return KindMapping
	}
}
