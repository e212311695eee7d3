package threads

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/enginetest/enginetest/internal/procfs"
)

// seen says of each thread that has been looked at whether it is C's.
var seen struct {
	sync.Mutex
	ofC map[identity]bool
}

type identity struct {
	id    int
	start int64
}

// All lists the threads of this process. Where it cannot be told which are the Go runtime's, and
// beside the CUDA driver, none is said to be C's.
func All() (out []Thread) {
	seen.Lock()
	defer seen.Unlock()
	now := tasks()
	for k := range seen.ofC {
		if _, there := now[k]; !there {
			delete(seen.ofC, k)
		}
	}
	maps := executable()
	if !driven(maps) && len(strangers(now)) > 0 {
		confirm(now)
	}
	ofGo := map[string]bool{}
	for k, name := range now {
		if !seen.ofC[k] {
			ofGo[name] = true
		}
	}
	for k, name := range now {
		t := Thread{ID: k.id, Start: k.start}
		if seen.ofC[k] && !driven(maps) {
			t = describe(k, name, ofGo, maps)
		}
		out = append(out, t)
	}
	return out
}

// strangers are the threads of the list that have not been looked at, but the main one, which is Go's.
func strangers(list map[identity]string) (out []identity) {
	for k := range list {
		if _, known := seen.ofC[k]; !known && k.id != os.Getpid() {
			out = append(out, k)
		}
	}
	return out
}

// tasks lists the threads of this process with their names.
func tasks() map[identity]string {
	out := map[identity]string{}
	dirs, _ := filepath.Glob("/proc/self/task/*")
	for _, d := range dirs {
		id, _ := strconv.Atoi(filepath.Base(d))
		if s, ok := procfs.StatOf(id); ok && !s.Dead() { // /proc/N is there for a thread, too
			out[identity{id, s.Start}] = s.Command
		}
	}
	return out
}

// How long a thread must be unknown to the runtime, and how long at most it is waited for one that
// is about to be known or gone: on a busy machine it may not get a processor sooner. One that has
// computed for so long is neither.
const (
	settled  = 50 * time.Millisecond
	beginner = 5 * settled
	patient  = 2 * time.Second
	computed = 20 * time.Millisecond
)

// confirm finds out which threads are C's. A thread of Go's own is unknown to the runtime for a
// moment at its end; at its begin the runtime has a descriptor without a number for it, as it has for
// some that have ended.
func confirm(now map[identity]string) {
	m := openMachines()
	if m == nil {
		return
	}
	defer m.close()
	if seen.ofC == nil {
		seen.ofC = map[identity]bool{}
	}
	start, atFirst := time.Now(), map[int]time.Duration{}
	for _, k := range strangers(now) {
		atFirst[k.id] = processorTime(k.id)
	}
	ids, unborn, ok := m.all(false)
	for searched := false; ; searched = true {
		there := tasks()
		for _, k := range strangers(now) {
			if _, alive := there[k]; !alive {
				delete(now, k)
			} else if ids[k.id] {
				seen.ofC[k] = false
			}
		}
		left := strangers(now)
		waited := time.Since(start)
		switch {
		case len(left) == 0, searched && !ok:
			return
		case searched && waited > settled && (!unborn || waited > beginner) && (waited > patient || !passing(left, atFirst)):
			for _, k := range left {
				seen.ofC[k] = true
			}
			return
		case searched:
			time.Sleep(4 * time.Millisecond)
		}
		ids, unborn, ok = m.all(!searched)
	}
}

// passing reports whether one of the threads runs, or is busy in the kernel, and has not done so for
// long: then it may be about to end, or to begin.
func passing(list []identity, atFirst map[int]time.Duration) bool {
	for _, k := range list {
		s, ok := procfs.StatOf(k.id)
		busy := !ok || s.State == 'R' || s.State == 'D' || s.Dead()
		if busy && processorTime(k.id)-atFirst[k.id] < computed {
			return true
		}
	}
	return false
}

// processorTime is how long a thread has run; 0 where the system does not say.
func processorTime(id int) time.Duration {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/schedstat", id))
	var n time.Duration
	fmt.Sscan(string(text), &n) //nolint:errcheck // as above
	return n
}

// age is how long ago a number of ticks since boot was.
func age(start int64) time.Duration {
	text, _ := os.ReadFile("/proc/uptime")
	var up float64
	fmt.Sscan(string(text), &up) //nolint:errcheck // 0 when it cannot be read
	const ticks = 100            // a second, for all that Linux tells programs
	return max(0, time.Duration((up-float64(start)/ticks)*float64(time.Second)))
}
