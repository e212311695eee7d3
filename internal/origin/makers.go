package origin

import (
	"os"
	"sync"

	"github.com/enginetest/enginetest/internal/procfs"
)

// Makers tells which process made the entries of folders that all processes use, since the watch
// began. The kernel reports it: with rights, every process; without, this one and "another".
type Makers struct {
	folders []*folder
	since   []uint64
	close   sync.Once

	follower follower
}

// A folder is watched once for all who ask.
type folder struct {
	dir   string
	users int
	group group
	every bool // the kernel tells every process, not only this one
	err   error

	events uint64 // seen so far
	lost   uint64 // the last event before which some were dropped
	made   map[string]maker
}

// maker is the last process that made or renamed an entry.
type maker struct {
	Maker
	event uint64
}

// A Maker is a process as it was when the kernel's report was read.
type Maker struct {
	PID     int    // 0: another process than this one
	Parents []int  // from the closest on; none when it was gone by then
	Group   string // its control groups, as /proc shows them
	Command string
}

// watched holds the folders that are watched now; no engine hangs on it.
var watched struct {
	sync.Mutex
	folders map[string]*folder
}

// mostMade bounds the names that are remembered: beyond, those of entries that are gone are
// dropped.
const mostMade = 10_000

// Watch watches folders until Close.
func Watch(dirs ...string) *Makers {
	m := &Makers{}
	watched.Lock()
	defer watched.Unlock()
	if watched.folders == nil {
		watched.folders = map[string]*folder{}
	}
	for _, dir := range dirs {
		f := watched.folders[dir]
		if f == nil {
			f = &folder{dir: dir, made: map[string]maker{}}
			f.group, f.every, f.err = newGroup(dir)
			watched.folders[dir] = f
		}
		f.users++
		f.drain()
		m.folders, m.since = append(m.folders, f), append(m.since, f.events)
	}
	return m
}

// Of returns the process that made an entry of a watched folder: 0 is another process than this
// one. known is false when the entry is older than the watch, or the kernel does not tell.
func (m *Makers) Of(dir, name string) (pid int, known bool) {
	made, known := m.Maker(dir, name)
	return made.PID, known
}

// Maker is Of with all that is known of the process.
func (m *Makers) Maker(dir, name string) (made Maker, known bool) {
	watched.Lock()
	defer watched.Unlock()
	for i, f := range m.folders {
		if f.dir != dir || f.users == 0 {
			continue
		}
		f.drain()
		made, ok := f.made[name]
		return made.Maker, ok && made.event > m.since[i] && f.lost <= m.since[i]
	}
	return Maker{}, false
}

// Read takes what the kernel has reported until now, so that the processes are looked at.
func (m *Makers) Read() {
	watched.Lock()
	defer watched.Unlock()
	for _, f := range m.folders {
		if f.users > 0 {
			f.drain()
		}
	}
}

// Every reports whether the kernel tells the makers of all entries of a folder: with rights it
// does, and without it tells only this process's own.
func (m *Makers) Every(dir string) bool {
	for _, f := range m.folders {
		if f.dir == dir {
			return f.every
		}
	}
	return false
}

// Err says why the makers in a folder are not known; nil when they are.
func (m *Makers) Err(dir string) error {
	for _, f := range m.folders {
		if f.dir == dir {
			return f.err
		}
	}
	return errNotWatched
}

// Close ends the watch. A second call has no effect.
func (m *Makers) Close() {
	m.close.Do(func() {
		m.follower.stop()
		watched.Lock()
		defer watched.Unlock()
		for _, f := range m.folders {
			if f.users--; f.users == 0 {
				f.group.close()
				delete(watched.folders, f.dir)
			}
		}
	})
}

// Own reports whether a descriptor of this process belongs to a watch.
func Own(fd int) bool {
	watched.Lock()
	defer watched.Unlock()
	for _, f := range watched.folders {
		if f.err == nil && f.group.is(fd) {
			return true
		}
	}
	return false
}

// note takes one event.
func (f *folder) note(name string, pid int, lost bool) {
	f.events++
	if lost {
		f.lost = f.events
		return
	}
	f.made[name] = maker{identify(pid), f.events}
}

// identify looks at a process while it is there.
func identify(pid int) Maker {
	m := Maker{PID: pid}
	if pid == 0 || pid == os.Getpid() {
		return m
	}
	m.Command, m.Group = procfs.CommandLine(pid), string(procfs.Read(pid, "cgroup"))
	for at := pid; at > 1 && len(m.Parents) < 64; {
		st, ok := procfs.StatOf(at)
		if !ok {
			break
		}
		at = st.Parent
		m.Parents = append(m.Parents, at)
	}
	return m
}

// drain takes what the kernel has reported.
func (f *folder) drain() {
	if f.err != nil {
		return
	}
	f.group.read(f.note)
	if len(f.made) > mostMade {
		f.forget()
	}
}
