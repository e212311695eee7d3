package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/leakcheck"
	"github.com/enginetest/enginetest/ledger"
)

// deviceMemory follows what the engine's processes hold on the GPUs, from before it starts.
type deviceMemory struct {
	src     gpuwait.Source
	close   func() error
	family  *family
	account *gpuwait.Account
	owned   []func() // strike out what this engine owns
	report  *gpuwait.AccountReport
	skip    string
	err     error
}

// sharedContext is device memory that belongs to no engine: the CUDA context that the engines of a
// process share, and that stays until the last of them is gone. 527 MiB measured on an H200 with
// driver 580.
const sharedContext = 768 << 20

// family is the processes that this engine's memory may be in: this one, those that the engine
// named, and, while nothing else runs in this process, all that descend from this one.
type family struct {
	alone func() bool

	mu    sync.Mutex
	named []int
}

func (f *family) name(engine []process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.named = nil
	for _, p := range engine {
		f.named = append(f.named, p.pid)
	}
}

func (f *family) has(pid int) bool {
	f.mu.Lock()
	named := slices.Clone(f.named)
	f.mu.Unlock()
	if pid == os.Getpid() || gpuwait.Descendants(named...)(pid) {
		return true
	}
	return gpuwait.Descendants(os.Getpid())(pid) && f.alone()
}

// watchDeviceMemory waits for the room that the engine needs and reads the baseline, unless the
// options say otherwise or there is no GPU.
func watchDeviceMemory(ctx context.Context, o *options, alone func() bool) (*deviceMemory, error) {
	d := &deviceMemory{close: func() error { return nil }, family: &family{alone: func() bool {
		return alone() && leakcheck.OtherTests() == 0
	}}}
	d.open(o)
	if err := d.room(ctx, o); err != nil {
		return nil, errors.Join(err, d.close())
	}
	if d.skip == "" && d.err == nil {
		d.account, d.err = gpuwait.NewAccount(ctx, d.src, d.family.has)
	}
	return d, nil
}

func (d *deviceMemory) open(o *options) {
	if o.noDevice != "" {
		d.skip = o.noDevice
		return
	}
	if d.src = o.source; d.src != nil {
		return
	}
	src, err := gpuwait.Open()
	switch {
	case errors.Is(err, gpuwait.ErrNoSource):
		d.skip = strings.TrimPrefix(err.Error(), "gpuwait: "+gpuwait.ErrCannotMeasure.Error()+": ")
	case err != nil:
		d.err = err
	default:
		d.src, d.close = src, src.Close
	}
}

// room is the gate before the start: it waits for the free memory that the options ask for.
func (d *deviceMemory) room(ctx context.Context, o *options) error {
	if len(o.needs) == 0 {
		return nil
	}
	if d.skip != "" || d.err != nil {
		return fmt.Errorf("%s.%s cannot be waited for: %w", o.pkg, o.needs[0].name,
			cmpErr(d.err, fmt.Errorf("%w: %s", gpuwait.ErrCannotMeasure, d.skip)))
	}
	timeout := o.start
	if end, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(end))
	}
	for _, need := range o.needs {
		opts := []gpuwait.ClearOption{gpuwait.Timeout(timeout), gpuwait.KeepWaiting(), gpuwait.Progress(o.say)}
		if _, err := gpuwait.Clear(ctx, d.src, need.condition, opts...); err != nil {
			return fmt.Errorf("%s.%s was not met, and nothing was started: %w", o.pkg, need.name, err)
		}
	}
	return nil
}

func cmpErr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

// read takes a reading while the engine has its memory.
func (d *deviceMemory) read(engine []process) {
	d.family.name(engine)
	if d.account != nil {
		d.account.Read()
	}
}

// own tells the waits of other fixtures what this engine holds on purpose.
func (d *deviceMemory) own(name string, held []ledger.Holding) {
	if d.account == nil {
		return
	}
	on := ledger.ByDevice(held)
	for _, gpu := range d.account.Devices() {
		if on[gpu.UUID] > 0 {
			d.owned = append(d.owned, gpuwait.Own(gpu.UUID, name, on[gpu.UUID]))
		}
	}
}

// returned waits until the engine's processes hold nothing more on any GPU.
func (d *deviceMemory) returned(ctx context.Context, o *options, host *hostBaseline) (_ string, err error) {
	defer func() { err = errors.Join(err, d.close()) }()
	for _, release := range d.owned {
		release()
	}
	alone := host.leave()
	if d.skip != "" {
		return "", skipped("%s", d.skip)
	}
	if d.err != nil {
		return "", fmt.Errorf("the baseline could not be taken: %w; %s.WithoutDeviceMemory(reason) leaves this check out", d.err, o.pkg)
	}
	slack := o.slack
	if !alone {
		slack += sharedContext
	}
	r, err := d.account.Returned(ctx, gpuwait.Slack(slack), gpuwait.Timeout(time.Until(deadline(ctx))),
		gpuwait.Progress(o.say))
	d.report = &r
	var failed *gpuwait.AccountError
	if errors.As(err, &failed) {
		failed.Report.Advice = fmt.Sprintf("to accept it: %s.DeviceSlack(bytes); to wait longer: %[1]s.TeardownTimeout(d); "+
			"to leave this check out: %[1]s.WithoutDeviceMemory(reason)", o.pkg)
		kept := host.ofDriver()
		for _, on := range failed.Report.Devices {
			for i := range on.Forgotten {
				on.Forgotten[i].Driver = kept
			}
		}
	}
	return r.Line(), err
}
