package gpuwait

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"
)

// Account follows the device memory of one family of processes, from before its engine starts until
// the memory is back. Other processes may come, go, grow and shrink meanwhile: what they do is not
// the family's.
//
// Take it before the engine starts ([NewAccount]), read while the engine has its memory
// ([Account.Read]), and ask in the end ([Account.Returned]). An Account is for one goroutine at a
// time.
type Account struct {
	src     Source
	family  Family
	procs   processTable
	owners  *owners
	members map[identity]bool
	devices []*deviceAccount
	hidden  string // why other processes may not be listed here; "" when the driver lists all
	mapped  bool   // the family had a GPU mapped in some reading
}

// deviceAccount is what an Account knows of one device.
type deviceAccount struct {
	device  Device
	base    reading
	owned   int64 // by live fixtures at the baseline
	settled bool
	last    reading
	peak    reading // the one with the most in the family's account; while the driver lists none of it, in no one's

	hidden      bool               // processes may exist here that the driver does not list
	listed      bool               // the driver listed a process of the family with its bytes
	low         map[identity]int64 // the least that each family process of the baseline held since
	lowUnlisted int64

	// Memory that left a process's account without leaving the device: the driver still reclaims
	// it, or never will.
	stranded       int64
	strandedOthers int64
	floor          int64 // unlisted memory before it
}

// The baseline waits for memory that is on its way out: an earlier engine of this family, or what
// no process is listed for.
const (
	settleFor    = 250 * time.Millisecond
	settleWithin = 2 * time.Second
	settleNoise  = 1 << 20
	settleFrom   = 64 << 20 // less than this is the driver's own
)

// NewAccount reads the baseline of every selected device: who holds what before the engine starts.
// When memory is still on its way out (a holder that is exiting, memory of the family, memory
// without a holder) it waits until that has not moved for 250 ms, at most 2 s. A device that cannot
// be measured is an error.
func NewAccount(ctx context.Context, src Source, family Family, opts ...AccountOption) (*Account, error) {
	return newAccount(ctx, src, family, proc{}, newOptions(opts, AccountOption.account))
}

func newAccount(ctx context.Context, src Source, family Family, procs processTable, o *options) (*Account, error) {
	if o.hidden == nil {
		o.hidden = hidingHere
	}
	devices, err := o.devices(src)
	if err != nil {
		return nil, err
	}
	a := &Account{
		src: src, family: family, procs: procs, owners: o.owners, members: map[identity]bool{},
		hidden: o.hidden(devices),
	}
	for _, d := range devices {
		r, err := a.read(d)
		if err != nil {
			return nil, err
		}
		a.devices = append(a.devices, &deviceAccount{device: d, base: r, settled: true})
	}
	if err := a.settle(ctx); err != nil {
		return nil, err
	}
	for _, d := range a.devices {
		d.owned = a.owners.bytes(d.device.UUID)
		d.begin(a.hidden != "")
	}
	return a, nil
}

// Devices returns the devices of the account.
func (a *Account) Devices() (list []Device) {
	for _, d := range a.devices {
		list = append(list, d.device)
	}
	return list
}

// hidingHere is hiding; tests replace it.
var hidingHere = hiding

// hiding says why the driver may not list every process here, "" when it does.
func hiding(devices []Device) string {
	const initialNamespace = "pid:[4026531836]"
	if ns, err := os.Readlink("/proc/self/ns/pid"); err == nil && ns != initialNamespace {
		return "this process is in a container: processes outside it may not be listed"
	}
	if os.Getuid() != 0 && slices.ContainsFunc(devices, func(d Device) bool { return d.Vendor == AMD }) {
		return "processes of other users are not listed on AMD devices"
	}
	return ""
}

func (d *deviceAccount) begin(hidden bool) {
	d.hidden = hidden
	d.last, d.peak, d.lowUnlisted = d.base, d.base, d.base.Unlisted
	d.low = map[identity]int64{}
	for id, h := range d.base.family {
		d.low[id] = h.Bytes
	}
	d.noteListed(d.base)
}

// settle repeats the baseline until what is on its way out has arrived.
func (a *Account) settle(ctx context.Context) error {
	start := time.Now()
	since := map[*deviceAccount]time.Time{}
	for {
		now, moving := time.Now(), false
		for _, d := range a.devices {
			if since[d].IsZero() {
				since[d] = start
			}
			d.settled = !d.restless(a.owners.bytes(d.device.UUID)) || now.Sub(since[d]) >= settleFor
			moving = moving || !d.settled
		}
		if !moving || now.Sub(start) >= settleWithin || !pause(ctx, 5*time.Millisecond) {
			return nil
		}
		for _, d := range a.devices {
			r, err := a.read(d.device)
			if err != nil {
				return err
			}
			if moved(d.base, r) {
				since[d] = time.Now()
			}
			d.base = r
		}
	}
}

// restless reports whether a baseline shows memory that may be on its way out.
func (d *deviceAccount) restless(owned int64) bool {
	exits := func(h Holder) bool { return state(h.PID) == exiting }
	return d.base.FamilyBytes() > owned+DefaultSlack || d.base.Unlisted > settleFrom ||
		slices.ContainsFunc(d.base.Others, exits) || slices.ContainsFunc(d.base.Family, exits)
}

// moved compares what belongs to the family and to no listed process: what other processes do is
// their business.
func moved(a, b reading) bool {
	differ := func(x, y int64) bool { return max(x, y)-min(x, y) > settleNoise }
	same := func(x, y Holder) bool { return x.Known == y.Known && !differ(x.Bytes, y.Bytes) }
	return differ(a.Unlisted, b.Unlisted) || !maps.EqualFunc(a.family, b.family, same)
}

// pause reports whether the context is still alive after d.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Read takes a reading while the engine has its memory: after it has started, and shortly before it
// is shut down. The readings show whether the driver lists the family's processes, which the proof
// in the end depends on. One that fails is left out.
func (a *Account) Read() {
	for _, d := range a.devices {
		if r, err := a.read(d.device); err == nil {
			d.add(r)
		}
	}
	listed := slices.ContainsFunc(a.devices, func(d *deviceAccount) bool { return d.listed })
	if !listed && a.gpuMapped() { // a listed process needs no other sign
		a.mapped = true
		for _, d := range a.devices {
			d.last.GPUMapped = true
		}
	}
}

// add takes a reading into the account.
func (d *deviceAccount) add(r reading) {
	d.noteListed(r)
	d.lowUnlisted = min(d.lowUnlisted, r.Unlisted)
	d.noteStranded(r)
	if r.listErr == nil {
		for id, low := range d.low {
			d.low[id] = min(low, r.held(id))
		}
	}
	if f, p := r.FamilyBytes(), d.peak.FamilyBytes(); f > p || f == p && r.Unlisted > d.peak.Unlisted {
		d.peak = r
	}
	d.last = r
}

func (d *deviceAccount) noteListed(r reading) {
	for _, h := range r.Family {
		d.listed = d.listed || h.Known && h.Bytes > 0
	}
}

// noteStranded follows memory that left a process's account and is still in use.
func (d *deviceAccount) noteStranded(r reading) {
	if r.listErr != nil || d.last.listErr != nil {
		return
	}
	rise := r.Unlisted - d.last.Unlisted - overhead*newcomers(d.last.others, r.others)
	switch {
	case !d.hidden: // all that is in no account is on its way back, whoever had it
		d.floor = d.lowUnlisted + overhead*newcomers(d.base.others, r.others)
	case d.stranded == 0 && d.strandedOthers == 0: // processes that are not listed have what was there before
		d.floor = d.last.Unlisted
	}
	if rise > 0 {
		d.stranded += min(rise, dropped(d.last.family, r.family))
		d.strandedOthers += min(rise, dropped(d.last.others, r.others))
	}
	above := max(0, r.Unlisted-d.floor)
	d.stranded, d.strandedOthers = min(d.stranded, above), min(d.strandedOthers, above)
}

// overhead is what a process with a GPU has beyond what the driver lists for it: 3.25 MiB on an
// H200 with driver 580.
const overhead = 8 << 20

func newcomers(before, after map[identity]Holder) (n int64) {
	for id := range after {
		if _, was := before[id]; !was {
			n++
		}
	}
	return n
}

// dropped is how much less the processes hold that held something before.
func dropped(before, after map[identity]Holder) (sum int64) {
	for id, h := range before {
		sum += max(0, h.Bytes-after[id].Bytes)
	}
	return sum
}

func (d *deviceAccount) String() string { return fmt.Sprint(d.device) }
