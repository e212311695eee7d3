package gpuwait

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// ErrBadCondition is in the error for a condition that makes no sense.
var ErrBadCondition = errors.New("bad condition")

// Condition says when a device counts as clear: used memory at most a bound, and, when asked, no
// longer changing. What live fixtures own ([Own]) is added to every bound but those of NeedFree and
// NeedUtilization.
type Condition struct {
	bounds []bound // the largest holds, as in vLLM's helper: used ≤ max(bytes, ratio·total)
	each   map[string]Condition
	settle time.Duration
	slack  int64 // how much a settled reading may move
	err    error
}

type bound struct {
	of       func(Device, Memory) (bytes int64, err error)
	text     string
	base     *Baseline
	absolute bool // what live fixtures own is not added: memory in use is not free, whoever uses it
}

// Ratio is met when used ≤ r·total, 0 ≤ r < 1. For an engine that is about to start with vLLM's
// gpu_memory_utilization u, r is 1−u.
func Ratio(r float64) Condition {
	if !(r >= 0 && r < 1) {
		return Condition{err: fmt.Errorf("gpuwait: %w: ratio %v is not in [0, 1): it is the share of total memory that may still be used", ErrBadCondition, r)}
	}
	return Condition{bounds: []bound{{
		of:   func(_ Device, m Memory) (int64, error) { return int64(r * float64(m.Total)), nil },
		text: fmt.Sprintf("%.4g%% of total", r*100),
	}}}
}

// Bytes is met when used ≤ n.
func Bytes(n int64) Condition {
	if n < 0 {
		return Condition{err: fmt.Errorf("gpuwait: %w: bytes bound %d is negative", ErrBadCondition, n)}
	}
	return Condition{bounds: []bound{{of: func(Device, Memory) (int64, error) { return n, nil }, text: size(n)}}}
}

// Delta is met when used ≤ what the baseline saw + slack. Fixtures that were live at the baseline
// and are gone now lower the bound, those started since raise it. It is the only condition that
// makes sense on a GPU that others use too.
func Delta(b Baseline, slack int64) Condition {
	if slack < 0 {
		return Condition{err: fmt.Errorf("gpuwait: %w: slack %d is negative", ErrBadCondition, slack)}
	}
	return Condition{bounds: []bound{{
		of: func(d Device, _ Memory) (int64, error) {
			r, ok := b.Devices[d.UUID]
			if !ok {
				return 0, fmt.Errorf("gpuwait: %w: %s is not in the baseline taken %s", ErrNoDevice, d.UUID,
					b.Taken.Format(time.TimeOnly))
			}
			return r.Memory.Used + slack, nil
		},
		text: fmt.Sprintf("the baseline of %s + %s", b.Taken.Format(time.TimeOnly), size(slack)),
		base: &b,
	}}}
}

// Settled is met when used memory has stayed within ±slack for d. Alone it has no bound; c.Settled
// adds it to one.
func Settled(d time.Duration, slack int64) Condition { return Condition{}.Settled(d, slack) }

// Settled adds that the reading must have stayed within the bound, and within ±slack, for d.
func (c Condition) Settled(d time.Duration, slack int64) Condition {
	if d <= 0 || slack < 0 {
		c.err = fmt.Errorf("gpuwait: %w: settled for %v within %d bytes: the time must be positive and the slack not negative", ErrBadCondition, d, slack)
	}
	c.settle, c.slack = d, slack
	return c
}

// NeedFree is met when at least n bytes are free. It is the gate before an engine that needs n
// bytes.
func NeedFree(n int64) Condition {
	if n <= 0 {
		return Condition{err: fmt.Errorf("gpuwait: %w: NeedFree(%d) is not positive", ErrBadCondition, n)}
	}
	return Condition{bounds: []bound{{
		of: func(d Device, m Memory) (int64, error) {
			if n > m.Total-m.Reserved {
				return 0, fmt.Errorf("gpuwait: %w: %s must have %s free and has %s in all", ErrBadCondition, d, size(n),
					size(m.Total-m.Reserved))
			}
			return m.Total - m.Reserved - n, nil
		},
		text:     size(n) + " must be free",
		absolute: true,
	}}}
}

// NeedUtilization is met when the share u of the device is free, 0 < u ≤ 1. It is the gate before
// an engine that is configured by its share of the device (vLLM's gpu_memory_utilization).
func NeedUtilization(u float64) Condition {
	if !(u > 0 && u <= 1) {
		return Condition{err: fmt.Errorf("gpuwait: %w: NeedUtilization(%v) is not in (0, 1]", ErrBadCondition, u)}
	}
	return Condition{bounds: []bound{{
		of:       func(_ Device, m Memory) (int64, error) { return m.Total - int64(u*float64(m.Total)), nil },
		text:     fmt.Sprintf("%.4g%% of total must be free", u*100),
		absolute: true,
	}}}
}

// Or makes the larger of the two bounds count; settling that either asks for stays asked for.
func (c Condition) Or(o Condition) Condition {
	c.bounds = append(slices.Clone(c.bounds), o.bounds...)
	if c.settle == 0 {
		c.settle, c.slack = o.settle, o.slack
	}
	if c.err == nil {
		c.err = o.err
	}
	return c
}

// For replaces the condition for one device.
func (c Condition) For(uuid string, o Condition) Condition {
	c.each = maps.Clone(c.each)
	if c.each == nil {
		c.each = map[string]Condition{}
	}
	c.each[uuid] = o
	if c.err == nil {
		c.err = o.err
	}
	return c
}

func (c Condition) empty() bool { return len(c.bounds) == 0 && c.settle == 0 }

func (c Condition) on(uuid string) Condition {
	if o, ok := c.each[uuid]; ok {
		return o
	}
	return c
}

// target returns the number of bytes that may be used, and the bound that says so; nil when there
// is none.
func (c Condition) target(d Device, m Memory, owned int64) (bytes int64, by *bound, err error) {
	for _, b := range c.bounds {
		n, err := b.of(d, m)
		if err != nil {
			return 0, nil, err
		}
		if !b.absolute {
			n += owned
		}
		if b.base != nil {
			n -= b.base.Devices[d.UUID].Owned
		}
		if by == nil || n > bytes {
			bytes, by = n, &b
		}
	}
	return max(0, bytes), by, nil
}

// Baseline is what devices looked like at one moment. It is plain data: it can be sent to a child
// process as JSON.
type Baseline struct {
	Taken   time.Time          `json:"taken"`
	Devices map[string]Reading `json:"devices"` // by UUID
}

// Reading is one device of a Baseline.
type Reading struct {
	Device  Device   `json:"device"`
	Memory  Memory   `json:"memory"`
	Owned   int64    `json:"owned"` // what live fixtures had registered
	Holders []Holder `json:"holders,omitempty"`
}

// Snapshot reads every selected device once. A device that cannot be measured is an error; holders
// that cannot be listed are left out.
func Snapshot(src Source, opts ...SnapshotOption) (Baseline, error) {
	o := newOptions(opts, SnapshotOption.snapshot)
	devices, err := o.devices(src)
	if err != nil {
		return Baseline{}, err
	}
	b := Baseline{Taken: time.Now(), Devices: map[string]Reading{}}
	for _, d := range devices {
		m, err := src.Memory(d.UUID)
		if err == nil {
			m, err = checked(d, m)
		}
		if err != nil {
			return Baseline{}, err
		}
		holders, _ := src.Holders(d.UUID)
		b.Devices[d.UUID] = Reading{Device: d, Memory: m, Owned: o.owners.bytes(d.UUID), Holders: holders}
	}
	return b, nil
}

// owners is a list of who owns how much device memory on purpose. A wait adds what they hold
// to its target, so that a fixture that lives longer than the test is not mistaken for a leak. The
// zero value is ready; it holds names and numbers only, nothing that keeps an engine alive.
type owners struct {
	mu   sync.Mutex
	next int
	live map[int]Owner
}

// Owner is a live fixture that owns device memory on purpose: see [Own].
type Owner struct {
	UUID  string `json:"uuid"`
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}

// processOwners is what Own enters, and what waits use unless told otherwise.
var processOwners owners

// Own tells every later wait of this process that name holds bytes on the device on purpose. Call
// release when that ends; it is idempotent.
func Own(uuid, name string, bytes int64) (release func()) {
	return processOwners.Own(uuid, name, bytes)
}

// Own enters an amount, release strikes it out.
func (o *owners) Own(uuid, name string, bytes int64) (release func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.next++
	id := o.next
	if o.live == nil {
		o.live = map[int]Owner{}
	}
	o.live[id] = Owner{UUID: uuid, Name: name, Bytes: max(0, bytes)}
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.live, id)
	}
}

// List returns the live owners of a device, the oldest first.
func (o *owners) List(uuid string) []Owner {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []Owner
	for _, id := range slices.Sorted(maps.Keys(o.live)) {
		if o.live[id].UUID == uuid {
			out = append(out, o.live[id])
		}
	}
	return out
}

func (o *owners) bytes(uuid string) int64 {
	var sum int64
	for _, w := range o.List(uuid) {
		sum += w.Bytes
	}
	return sum
}
