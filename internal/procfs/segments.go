package procfs

import "strconv"

// Segment is a System V shared memory segment. It stays until someone removes it.
type Segment struct {
	Key      uint32
	ID       int
	Size     int64
	Maker    int // the process that made it, which may be gone
	Attached int // how often it is mapped
}

// Segments lists the System V shared memory of this IPC namespace; other systems list none.
func Segments() []Segment { return segments(Table("/proc/sysvipc/shm")) }

func segments(rows [][]string) (found []Segment) {
	for _, f := range rows { // key shmid perms size cpid lpid nattch …
		if len(f) < 7 {
			continue
		}
		key, err := strconv.ParseInt(f[0], 10, 64)
		id, err1 := strconv.Atoi(f[1])
		size, err2 := strconv.ParseInt(f[3], 10, 64)
		maker, err3 := strconv.Atoi(f[4])
		attached, err4 := strconv.Atoi(f[6])
		if err == nil && err1 == nil && err2 == nil && err3 == nil && err4 == nil {
			found = append(found, Segment{uint32(key), id, size, maker, attached})
		}
	}
	return found
}
