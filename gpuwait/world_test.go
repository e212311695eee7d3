package gpuwait

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// world is a simulated machine with one GPU: processes with device memory, of the family under test
// and others, and what the driver shows of them. Time is the clock's: events happen when they are
// due, or, seldom, between two calls to the driver.
type world struct {
	mu      sync.Mutex
	rng     *rand.Rand
	start   time.Time
	see     visibility
	procs   map[int]*simProcess
	strands []strand // memory without a process, until a time
	events  []event
	nextPID int
	turmoil float64 // how likely something moves between two calls of one reading
}

type simProcess struct {
	bytes  int64
	family bool
	gpu    bool // has a GPU mapped
	hidden bool // the driver does not list it
}

type strand struct {
	bytes int64
	until time.Time
}

type event struct {
	at time.Duration
	do func()
}

// visibility is what the driver lists.
type visibility string

const (
	seesAll     visibility = "all listed"
	seesOwn     visibility = "others hidden"
	seesNone    visibility = "none listed"
	seesRefused visibility = "lists refused"
	seesNoBytes visibility = "no bytes listed"
)

const (
	simMiB     = int64(1) << 20
	simGiB     = int64(1) << 30
	simTotal   = 140 * simGiB
	simInit    = 3*simMiB + simMiB/4 // per process with a GPU, in no account
	simFirst   = 1 << 24             // beyond every real process id
	simReclaim = 180 * time.Millisecond
)

func newWorld(rng *rand.Rand, see visibility) *world {
	return &world{rng: rng, start: time.Now(), see: see, procs: map[int]*simProcess{}, nextPID: simFirst}
}

func (w *world) add(p simProcess) (pid int) {
	w.nextPID++
	w.procs[w.nextPID] = &p
	return w.nextPID
}

// end removes a process; its memory comes back later, or never when that is negative.
func (w *world) end(pid int, reclaim time.Duration) {
	p := w.procs[pid]
	if p == nil {
		return
	}
	delete(w.procs, pid)
	until := time.Now().Add(reclaim)
	if reclaim < 0 {
		until = time.Now().Add(24 * time.Hour)
	}
	if reclaim != 0 {
		w.strands = append(w.strands, strand{p.bytes, until})
	}
}

func (w *world) at(d time.Duration, do func()) {
	w.events = append(w.events, event{d, do})
	slices.SortStableFunc(w.events, func(a, b event) int { return int(a.at - b.at) })
}

// catchUp makes what is due happen.
func (w *world) catchUp() {
	for len(w.events) > 0 && time.Since(w.start) >= w.events[0].at {
		do := w.events[0].do
		w.events = w.events[1:]
		do()
	}
}

func (w *world) used() (sum int64) {
	for _, p := range w.procs {
		sum += p.bytes
		if p.gpu {
			sum += simInit
		}
	}
	for _, s := range w.strands {
		if time.Now().Before(s.until) {
			sum += s.bytes
		}
	}
	return sum
}

// do changes the world as if from another process.
func (w *world) do(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.catchUp()
	f()
}

func (w *world) Devices() ([]Device, error) {
	return []Device{{UUID: "GPU-sim", Name: "Simulated", Vendor: NVIDIA}}, nil
}

func (w *world) Memory(string) (Memory, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.catchUp()
	return Memory{Total: simTotal, Used: w.used()}, nil
}

func (w *world) Holders(string) ([]Holder, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.catchUp()
	if w.rng.Float64() < w.turmoil {
		w.nudge()
	}
	if w.see == seesRefused {
		return nil, fmt.Errorf("NVML: %w: Insufficient Permissions (4)", ErrCannotMeasure)
	}
	var out []Holder
	for _, pid := range slices.Sorted(maps.Keys(w.procs)) {
		p := w.procs[pid]
		if p.bytes == 0 || p.hidden || w.see == seesNone || w.see == seesOwn && !p.family {
			continue
		}
		h := Holder{PID: pid, Bytes: p.bytes, Known: true}
		if w.see == seesNoBytes {
			h = Holder{PID: pid}
		}
		out = append(out, h)
	}
	return out, nil
}

// nudge moves a neighbour's memory in the middle of a reading.
func (w *world) nudge() {
	for _, pid := range slices.Sorted(maps.Keys(w.procs)) {
		if p := w.procs[pid]; !p.family && p.bytes > 0 {
			p.bytes = max(simMiB, p.bytes+(w.rng.Int64N(4096)-2048)*simMiB)
			return
		}
	}
}

// The processTable.

func (w *world) started(int) int64 { return 0 }

func (w *world) list() []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.catchUp()
	return slices.Sorted(maps.Keys(w.procs))
}

func (w *world) mapped(pid int) (yes, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.procs[pid]
	return p != nil && p.gpu, true
}

func (w *world) isFamily(pid int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.procs[pid]
	return p != nil && p.family
}
