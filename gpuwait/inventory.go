package gpuwait

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Inventory is the state of a machine's devices at one moment: what `enginetest gpus` prints. It
// marshals to JSON; String is a table.
type Inventory struct {
	Taken   time.Time      `json:"taken"`
	Devices []DeviceStatus `json:"devices"`
}

// DeviceStatus is one device of an Inventory.
type DeviceStatus struct {
	Device
	Visible      bool      `json:"visible"`          // to CUDA or ROCm in this environment
	Memory       *Memory   `json:"memory,omitempty"` // nil when it cannot be measured: see Error
	Error        string    `json:"error,omitempty"`
	Holders      []Process `json:"holders,omitempty"`
	HoldersError string    `json:"holders_error,omitempty"`
	Unattributed int64     `json:"unattributed"` // bytes used that are in no holder's account
	Lease        *Lessee   `json:"lease,omitempty"`
}

// Inspect looks at every device of the source, or at those that [Devices] names. One that cannot be
// measured has an Error and no Memory; the call itself fails only when the devices cannot be
// listed.
func Inspect(src Source, opts ...InspectOption) (Inventory, error) {
	o := newOptions(opts, InspectOption.inspect)
	inv := Inventory{Taken: time.Now()}
	all, err := src.Devices()
	if err != nil {
		return inv, err
	}
	seen, err := Visible(all, o.getenv)
	if err != nil && !errors.Is(err, ErrNoneVisible) && !errors.Is(err, ErrBadSelector) {
		return inv, err
	}
	chosen := all
	if len(o.names) > 0 {
		if chosen, err = Select(all, o.names...); err != nil {
			return inv, err
		}
	}
	for _, d := range chosen {
		s := DeviceStatus{Device: d, Visible: slices.ContainsFunc(seen, func(v Device) bool {
			return v.UUID == d.UUID
		})}
		s.Lease, _ = leaseOn(o.leaseDir, d.UUID)
		w := &watch{src: src, device: d, o: o}
		m, err := src.Memory(d.UUID)
		if err == nil {
			m, err = checked(d, m)
		}
		if err != nil {
			s.Error = err.Error()
		} else {
			s.Memory, w.memory = &m, m
		}
		w.listHolders(inv.Taken)
		if w.holdersErr != nil {
			s.HoldersError = w.holdersErr.Error()
		}
		s.Holders, s.Unattributed = o.join(w, s.Lease)
		inv.Devices = append(inv.Devices, s)
	}
	return inv, nil
}

// String is a table: a line for each device, and under it a line for each holder.
func (inv Inventory) String() string {
	var b strings.Builder
	for _, d := range inv.Devices {
		index := strconv.Itoa(d.Index)
		if d.Parent != "" {
			index = fmt.Sprintf("%d:%d", d.Index, d.MIG)
		}
		fmt.Fprintf(&b, "%-4s %-42s %-24s ", index, d.UUID, d.Name)
		if d.Memory != nil {
			b.WriteString(of(*d.Memory, ""))
		} else {
			fmt.Fprintf(&b, "n/a: %s", d.Error)
		}
		if d.Sliced {
			b.WriteString("  MIG mode")
		} else if !d.Visible {
			b.WriteString("  not visible to this process")
		}
		if d.Lease != nil {
			fmt.Fprintf(&b, "  leased by %s", d.Lease)
		}
		b.WriteByte('\n')
		for _, p := range d.Holders {
			fmt.Fprintf(&b, "     %10s  %s\n", p.bytes(), p)
		}
		if d.HoldersError != "" {
			fmt.Fprintf(&b, "     holders n/a: %s\n", d.HoldersError)
		} else if d.Unattributed > 0 {
			fmt.Fprintf(&b, "     %10s  unattributed\n", size(d.Unattributed))
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// ExitCode is what a command that waited ends with: 0 clear, 1 not clear, 2 wrong usage (no such
// device, bad condition), 3 cannot measure.
func ExitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrCannotMeasure):
		return 3
	case errors.Is(err, ErrBadCondition), errors.Is(err, ErrBadSelector), errors.Is(err, ErrNoDevice),
		errors.Is(err, ErrNoneVisible):
		return 2
	}
	return 1
}
