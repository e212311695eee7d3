package gpuwait

import (
	"sort"
	"time"
)

// Usage is what one device held at one moment, split by whose it was.
type Usage struct {
	At       time.Time `json:"at,omitzero"`
	Memory   Memory    `json:"memory"`
	Family   []Holder  `json:"family,omitempty"`  // processes of the engine under test
	Others   []Holder  `json:"others,omitempty"`  // every other process that the driver lists
	Unlisted int64     `json:"unlisted"`          // used, and in no listed process's account
	Refused  string    `json:"refused,omitempty"` // why the driver did not list the holders
	// GPUMapped: a living process of the family has a GPU mapped, or its mappings could not be
	// read.
	GPUMapped bool `json:"gpu_mapped,omitempty"`
}

// FamilyBytes is what the driver lists for the family.
func (u Usage) FamilyBytes() int64 { return sumBytes(u.Family) }

func sumBytes(holders []Holder) (sum int64) {
	for _, h := range holders {
		sum += h.Bytes
	}
	return sum
}

// identity tells a process from a later one with its number.
type identity struct {
	pid     int
	started int64
}

// reading is a Usage with the identities of its holders.
type reading struct {
	Usage
	family, others map[identity]Holder
	listErr        error
}

// held is what the driver lists for one process; 0 when it is not listed.
func (r reading) held(id identity) int64 { return r.family[id].Bytes }

// consistent is how often a reading is repeated until memory is the same before and after the
// holders are listed.
const consistent = 5

// read reads one device. Memory and holders are two calls to the driver: they are repeated until
// nothing moved in between.
func (a *Account) read(d Device) (r reading, err error) {
	var holders []Holder
	for range consistent {
		var before Memory
		if before, err = a.memory(d); err != nil {
			return r, err
		}
		holders, r.listErr = a.src.Holders(d.UUID)
		if r.Memory, err = a.memory(d); err != nil {
			return r, err
		}
		if before == r.Memory {
			break
		}
	}
	r.At = time.Now()
	r.family, r.others = map[identity]Holder{}, map[identity]Holder{}
	if r.listErr != nil {
		r.Refused, holders = r.listErr.Error(), nil
	}
	for _, h := range holders {
		if id := (identity{h.PID, a.procs.started(h.PID)}); a.member(id) {
			r.family[id] = h
			r.Family = append(r.Family, h)
		} else {
			r.others[id] = h
			r.Others = append(r.Others, h)
		}
	}
	for _, list := range [][]Holder{r.Family, r.Others} {
		sort.Slice(list, func(i, j int) bool { return list[i].before(list[j]) })
	}
	r.Unlisted = max(0, r.Memory.Used-sumBytes(r.Family)-sumBytes(r.Others))
	return r, nil
}

func (a *Account) memory(d Device) (Memory, error) {
	m, err := a.src.Memory(d.UUID)
	if err == nil {
		m, err = checked(d, m)
	}
	return m, err
}

// member reports whether a process belongs to the family, or did when it was last asked about.
func (a *Account) member(id identity) bool {
	if !a.members[id] && a.family(id.pid) {
		a.members[id] = true
	}
	return a.members[id]
}

// gpuMapped reports whether a living process of the family has a GPU mapped, or may have one: its
// mappings cannot be read.
func (a *Account) gpuMapped() bool {
	for _, pid := range a.procs.list() {
		if !a.member(identity{pid, a.procs.started(pid)}) {
			continue
		}
		if yes, known := a.procs.mapped(pid); yes || !known {
			return true
		}
	}
	return false
}
