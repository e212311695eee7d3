package gpuwait

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/enginetest/enginetest/internal/procfs"
	"github.com/enginetest/enginetest/verdict"
)

// leasedEnv is the variable by which [Lease.Env] tells a child which devices its parent has leased
// for it.
const leasedEnv = "GPUWAIT_LEASED"

// leaseDirEnv moves the folder of the lock files, for machines where test processes differ in
// XDG_RUNTIME_DIR and TMPDIR.
const leaseDirEnv = "GPUWAIT_LEASE_DIR"

// Lease is the exclusive right to some devices, among all processes of this user that ask through
// this package.
//
// It is a lock (flock) on one file per UUID in $GPUWAIT_LEASE_DIR, else $XDG_RUNTIME_DIR/gpuwait,
// else <temporary folder>/gpuwait-<uid>; mode 0600 in a folder of mode 0700. The lock belongs to
// the open file: a child that inherits Files holds it as well, until it dies, even when the parent
// was killed. Files are never removed, and a line in each names its holder.
type Lease struct {
	devices []Device
	files   []*os.File
	keys    []string
	once    sync.Once
}

// Devices are the leased devices, in the source's order.
func (l *Lease) Devices() []Device { return slices.Clone(l.devices) }

// UUIDs are the leased devices' UUIDs.
func (l *Lease) UUIDs() []string {
	var out []string
	for _, d := range l.devices {
		out = append(out, d.UUID)
	}
	return out
}

// Files are the locks, for exec.Cmd.ExtraFiles: a child that has them keeps the devices leased
// until it has ended. They stay the lease's: do not close them. It is empty for a lease that was
// itself inherited.
func (l *Lease) Files() []*os.File { return slices.Clone(l.files) }

// Env is the environment for a child that sees only these devices, by UUID, and whose own Acquire
// takes from these.
func (l *Lease) Env() []string {
	var nv, amd []string
	for _, d := range l.devices {
		if d.Vendor == AMD {
			amd = append(amd, d.UUID)
		} else {
			nv = append(nv, d.UUID)
		}
	}
	env := []string{leasedEnv + "=" + strings.Join(l.UUIDs(), ",")}
	if len(nv) > 0 {
		env = append(env, "CUDA_VISIBLE_DEVICES="+strings.Join(nv, ","))
	}
	if len(amd) > 0 {
		var within []string
		for i := range amd {
			// HIP counts within what ROCr leaves; an inherited value would hide devices
			within = append(within, fmt.Sprint(i))
		}
		env = append(env, "ROCR_VISIBLE_DEVICES="+strings.Join(amd, ","),
			"HIP_VISIBLE_DEVICES="+strings.Join(within, ","))
	}
	return env
}

// Release returns the devices; it is idempotent. Devices whose Files a child inherited are free
// when that child ends.
func (l *Lease) Release() {
	l.once.Do(func() { inProcess.release(l.keys) })
}

// Acquire leases n devices for the rest of the test; of more than n it takes the emptiest. It waits
// for its turn, first come first served within this process, and gives up before the test's own
// deadline, naming who holds them. Several devices are taken all at once or not at all, so two
// tests that each want two never wait for each other. Cleanup releases the lease.
//
// In a test whose parent process passed on [Lease.Env] it takes from the devices that the parent
// has leased.
func Acquire(t TB, n int, opts ...AcquireOption) *Lease {
	t.Helper()
	o := newOptions(opts, AcquireOption.acquire)
	o.bind(t)
	ctx, cancel := o.within(t)
	defer cancel()
	l, err := o.acquireDevices(ctx, n)
	if err != nil {
		if o.skipBusy && errors.Is(err, ErrBusy) {
			verdict.Record(t, verdict.Of(err)...)
			t.Skipf("%v", err)
		}
		o.fail(t, err)
		return nil
	}
	t.Cleanup(l.Release)
	if a, ok := t.(interface{ Attr(key, value string) }); ok {
		a.Attr("gpu.uuid", strings.Join(l.UUIDs(), ","))
	}
	return l
}

// AcquireContext is Acquire without a test. It waits until the context ends, or for [Timeout]. The
// error is a [*BusyError] when the devices stayed taken, and wraps [ErrCannotMeasure] when none can
// be listed. Without a source, devices can still be leased by full UUID.
func AcquireContext(ctx context.Context, n int, opts ...LeaseOption) (*Lease, error) {
	return newOptions(opts, LeaseOption.lease).acquireDevices(ctx, n)
}

func (o *options) acquireDevices(ctx context.Context, n int) (*Lease, error) {
	if o.name == "" {
		o.name = filepath.Base(os.Args[0])
	}
	if n < 1 {
		return nil, fmt.Errorf("gpuwait: Acquire of %d devices: at least 1", n)
	}
	src, closeSource, candidates, err := o.candidates()
	if err != nil {
		return nil, err
	}
	defer closeSource()
	if n > len(candidates) {
		return nil, verdict.With(verdict.ClassCapacity, fmt.Errorf("gpuwait: %w: %d devices wanted, %d there: %s",
			ErrNoDevice, n, len(candidates), uuids(candidates)))
	}
	dir, err := leaseFolder(o.leaseDir, true)
	if err != nil {
		return nil, err
	}
	a := &attempt{
		o: o, src: src, n: n, dir: dir, candidates: candidates, start: time.Now(),
		inherited: strings.Split(os.Getenv(leasedEnv), ","),
	}
	if given := slices.DeleteFunc(slices.Clone(candidates), func(d Device) bool {
		return !a.inherits(d.UUID)
	}); len(given) >= n {
		a.candidates = given // an emptier one is not ours
	}
	return a.wait(ctx)
}

func (o *options) candidates() (Source, func(), []Device, error) {
	src, closeSource, err := o.source()
	if err == nil {
		devices, err := o.devices(src)
		if err != nil {
			closeSource()
			return nil, nil, nil, err
		}
		return src, closeSource, devices, nil
	}
	if len(o.names) == 0 || o.minFree > 0 || slices.ContainsFunc(o.names, func(n string) bool { return !fullUUID(n) }) {
		return nil, nil, nil, err
	}
	var devices []Device
	for i, name := range o.names {
		d := Device{UUID: name, Index: i, Vendor: NVIDIA}
		if !strings.Contains(strings.TrimPrefix(name, "GPU-"), "-") {
			d.Vendor = AMD // "GPU-" and 16 digits; NVIDIA's have dashes
		}
		devices = append(devices, d)
	}
	devices, err = unique(devices)
	return nil, func() {}, devices, err
}

func fullUUID(name string) bool {
	return strings.HasPrefix(name, "MIG-") || strings.HasPrefix(name, "GPU-") && len(name) >= len("GPU-")+16
}

// attempt is one Acquire that waits for its turn.
type attempt struct {
	o          *options
	src        Source
	n          int
	dir        string
	candidates []Device
	inherited  []string
	start      time.Time
	why        map[string]string // by UUID: why it could not be taken
	lost       []error
	gateHeld   bool // by another process, during all of the last try
}

// wait tries until it is this attempt's turn. It polls: another process cannot wake it.
func (a *attempt) wait(ctx context.Context) (*Lease, error) {
	for _, d := range a.candidates {
		if _, err := lockPath(a.dir, d.UUID); err != nil {
			return nil, err
		}
	}
	place := inProcess.join(a.keys())
	defer inProcess.leave(place)
	var looked time.Time
	say := a.o.speaker(a.start)
	for {
		l, err := a.try(place)
		if l != nil || err != nil {
			return l, err
		}
		if time.Since(looked) > time.Second {
			looked = time.Now()
			if own := a.hopeless(); own != "" {
				return nil, a.busy(errors.New(own))
			}
		}
		waited := time.Since(a.start)
		if a.o.timeout >= 0 && waited >= a.o.timeout {
			return nil, a.busy(nil)
		}
		say.at(time.Now(), func() string { return a.busy(nil).summary() })
		pause := min(max(2*time.Millisecond, waited/20), 50*time.Millisecond)
		if a.o.timeout >= 0 {
			pause = min(pause, a.o.timeout-waited)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, a.busy(context.Cause(ctx))
		case <-timer.C:
		}
	}
}

// try takes n devices if it is this attempt's turn and n devices are free now; all or none, under
// the folder's gate.
func (a *attempt) try(place *place) (*Lease, error) {
	a.why, a.lost, a.gateHeld = map[string]string{}, nil, false
	wanted := a.preferred()
	if len(a.candidates)-len(a.lost) < a.n {
		return nil, fmt.Errorf("gpuwait: %s wants %d of %d devices: %w", a.o.name, a.n, len(a.candidates),
			errors.Join(a.lost...))
	}
	if len(wanted) < a.n {
		return nil, nil
	}
	gate, err := openGate(a.dir)
	if err != nil || gate == nil {
		a.gateHeld = err == nil
		return nil, err
	}
	defer func() { _ = gate.Close() }()
	inProcess.mu.Lock()
	defer inProcess.mu.Unlock()
	if !inProcess.turn(place) {
		return nil, nil
	}
	l := &Lease{}
	for _, d := range wanted {
		key := filepath.Join(a.dir, d.UUID)
		if _, taken := inProcess.held[key]; taken {
			continue
		}
		f, err := lockFile(a.dir, d.UUID)
		if err != nil {
			l.close()
			return nil, err
		}
		if f == nil && !a.inherits(d.UUID) {
			continue
		}
		l.devices, l.keys = append(l.devices, d), append(l.keys, key)
		if f != nil {
			l.files = append(l.files, f)
		}
		if len(l.devices) == a.n {
			break
		}
	}
	if len(l.devices) < a.n {
		l.close()
		return nil, nil
	}
	self, _ := procfs.StatOf(os.Getpid())
	line := Lessee{
		PID: os.Getpid(), Start: self.Start, Program: filepath.Base(os.Args[0]), Name: a.o.name,
		Since: time.Now(),
	}
	for _, f := range l.files {
		if err := line.write(f); err != nil {
			l.close()
			return nil, err
		}
	}
	inProcess.take(l, a.o.name)
	sort.Slice(l.devices, func(i, j int) bool {
		x, y := l.devices[i], l.devices[j]
		return x.Index < y.Index || x.Index == y.Index && x.MIG < y.MIG
	})
	return l, nil
}

// inherits reports whether the parent leased this device for this process: the environment says so,
// and its lock is a parent's or open in this process. A variable that outlived its lease says
// nothing.
func (a *attempt) inherits(uuid string) bool {
	if !slices.Contains(a.inherited, uuid) {
		return false
	}
	path, err := lockPath(a.dir, uuid)
	if err != nil {
		return false
	}
	self := os.Getpid()
	l := readLessee(path)
	return l.PID == os.Getppid() || descends(self, l.PID) || slices.Contains(opened(path), self)
}

// close releases the locks of an incomplete lease. Closing is enough: an explicit unlock would free
// them for a child that shares the files, too.
func (l *Lease) close() {
	for _, f := range l.files {
		_ = f.Close()
	}
}

// preferred are the candidates that can be measured and have enough room, emptiest first.
func (a *attempt) preferred() []Device {
	if a.src == nil {
		return a.candidates
	}
	type room struct {
		Device
		free int64
	}
	var rooms []room
	for _, d := range a.candidates {
		m, err := a.src.Memory(d.UUID)
		if err == nil {
			m, err = checked(d, m)
		}
		switch {
		case errors.Is(err, ErrLost):
			a.lost = append(a.lost, fmt.Errorf("%s: %w", d, err))
			fallthrough
		case err != nil:
			a.why[d.UUID] = err.Error()
		case m.Free() < a.o.minFree:
			a.why[d.UUID] = fmt.Sprintf("only %s free of %s", size(m.Free()), size(m.Total))
		default:
			rooms = append(rooms, room{d, m.Free()})
		}
	}
	sort.SliceStable(rooms, func(i, j int) bool { return rooms[i].free > rooms[j].free })
	out := make([]Device, len(rooms))
	for i, r := range rooms {
		out[i] = r.Device
	}
	return out
}

func (a *attempt) keys() []string {
	var keys []string
	for _, d := range a.candidates {
		keys = append(keys, filepath.Join(a.dir, d.UUID))
	}
	return keys
}

// hopeless names the mistake when only this test itself, or a parent that waits for it, could
// release the devices.
func (a *attempt) hopeless() string {
	others, reason := len(a.candidates), ""
	for _, d := range a.candidates {
		l, _ := leaseOn(a.dir, d.UUID)
		own, held := inProcess.holder(filepath.Join(a.dir, d.UUID))
		switch {
		case held && (own == a.o.name || strings.HasPrefix(a.o.name, own+"/")):
			others--
			reason = fmt.Sprintf("%s holds it already, so this would wait for itself: acquire all devices in one call",
				own)
		case l == nil || a.inherits(d.UUID):
		case descends(os.Getpid(), l.PID):
			others--
			reason = fmt.Sprintf("it is held by this process's own parent (pid %d, %s): start the child with lease.Env() in its environment and lease.Files() in ExtraFiles", l.PID, l.Name)
		}
	}
	if others >= a.n {
		return ""
	}
	return reason
}
