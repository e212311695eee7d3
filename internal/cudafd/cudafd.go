// Package cudafd tells which descriptors of this process are the CUDA driver's own: pipes, eventfds
// and epolls that it opens at its first use and keeps until the process ends. Those look like
// anyone's, so each needs evidence of its own:
//
//   - it appeared during a call that starts the driver ([Starting]);
//   - or a thread of the driver waits for it;
//   - or it is the other end of such a pipe, or is watched by such an epoll;
//   - or it is the pipe that was made right after such a pipe and right before a device file.
package cudafd

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// started are the descriptors that appeared in Starting.
var started struct {
	sync.Mutex
	seen map[descriptor]bool
}

// descriptor tells one from a later one with its number, as far as the system does: pipes have
// inodes, eventfds have ids, an epoll has neither.
type descriptor struct{ fd, target, id string }

// Starting runs a call that starts the driver and notes which pipes, eventfds and epolls it leaves
// open.
func Starting(call func()) {
	before := list()
	defer func() {
		after := list()
		started.Lock()
		defer started.Unlock()
		if started.seen == nil {
			started.seen = map[descriptor]bool{}
		}
		for d := range after {
			if !before[d] {
				started.seen[d] = true
			}
		}
	}()
	call()
}

// Own says of each descriptor that is the driver's how that is known, by its number.
func Own() map[string]string {
	now := list()
	own := map[string]string{}
	started.Lock()
	for d := range started.seen {
		if !now[d] {
			delete(started.seen, d) // closed: a later one may look the same
			continue
		}
		own[d.fd] = "opened when the driver started"
	}
	started.Unlock()
	if len(now) == 0 {
		return own
	}
	waited := waitedFor()
	for d := range now {
		if thread, ok := waited[d.fd]; ok && own[d.fd] == "" {
			own[d.fd] = "its thread " + thread + " waits for it"
		}
	}
	spread(own, now)
	return own
}

// spread follows the evidence from an epoll to what it watches, and between the ends of a pipe.
func spread(own map[string]string, now map[descriptor]bool) {
	for d := range now {
		if own[d.fd] == "" || !strings.Contains(d.target, "eventpoll") {
			continue
		}
		for _, fd := range watchedBy(d.fd) {
			for w := range now {
				if w.fd == fd && own[fd] == "" {
					own[fd] = "its epoll fd " + d.fd + " watches it"
				}
			}
		}
	}
	for fd, why := range twins(own, now) {
		own[fd] = why
	}
	pipes := map[string]string{}
	for d := range now {
		if own[d.fd] != "" && strings.HasPrefix(d.target, "pipe:") {
			pipes[d.target] = d.fd
		}
	}
	for d := range now {
		if end := pipes[d.target]; end != "" && own[d.fd] == "" {
			own[d.fd] = "the other end of its fd " + end
		}
	}
}

// twins finds pipes that no thread waits for: the driver (580) makes two at its start, one after the
// other, then opens its device files. Such a pipe has the next inode, and the next descriptor above
// it is a device file.
func twins(own map[string]string, now map[descriptor]bool) map[string]string {
	proved, out := map[int]string{}, map[string]string{}
	for d := range now {
		if n, ok := inode(d.target); ok && own[d.fd] != "" {
			proved[n] = d.fd
		}
	}
	for d := range now {
		n, ok := inode(d.target)
		if first := proved[n-1]; ok && first != "" && own[d.fd] == "" && strings.HasPrefix(above(d.fd), "/dev/nvidia") {
			out[d.fd] = "made between its fd " + first + " and its device files"
		}
	}
	return out
}

func inode(target string) (n int, ok bool) {
	digits, ok := strings.CutPrefix(target, "pipe:[")
	n, err := strconv.Atoi(strings.TrimSuffix(digits, "]"))
	return n, ok && err == nil
}

// above is the target of the next descriptor that is open.
func above(fd string) string {
	n, _ := strconv.Atoi(fd)
	for i := range 8 {
		if target, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(n+1+i)); err == nil {
			return target
		}
	}
	return ""
}

// list lists the pipes, eventfds and epolls that are open.
func list() map[descriptor]bool {
	out := map[descriptor]bool{}
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return out
	}
	defer dir.Close()
	fds, _ := dir.Readdirnames(-1)
	for _, fd := range fds {
		target, err := os.Readlink("/proc/self/fd/" + fd)
		switch {
		case err != nil:
		case strings.HasPrefix(target, "pipe:"), strings.Contains(target, "eventpoll"):
			out[descriptor{fd, target, ""}] = true
		case strings.Contains(target, "eventfd"):
			out[descriptor{fd, target, eventfdID(fd)}] = true
		}
	}
	return out
}

// eventfdID is the kernel's number of an eventfd, "" where it has none.
func eventfdID(fd string) string {
	text, _ := os.ReadFile(filepath.Join("/proc/self/fdinfo", fd))
	for line := range strings.Lines(string(text)) {
		if id, ok := strings.CutPrefix(line, "eventfd-id:"); ok {
			return strings.TrimSpace(id)
		}
	}
	return ""
}

// watchedBy lists what an epoll watches.
func watchedBy(fd string) (fds []string) {
	text, _ := os.ReadFile(filepath.Join("/proc/self/fdinfo", fd))
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "tfd:" {
			fds = append(fds, f[1])
		}
	}
	return fds
}
