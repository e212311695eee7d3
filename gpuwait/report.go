package gpuwait

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/enginetest/enginetest/ledger"
)

// Ending says why a wait ended: clear, timeout, held (given up early: see [Patience]), cancelled
// (the context ended) or unmeasurable (see the error).
type Ending string

const (
	endingCleared      Ending = "clear"
	endingTimeout      Ending = "timeout"
	endingHeld         Ending = "held"         // given up early: see Patience
	endingCancelled    Ending = "cancelled"    // the context ended
	endingUnmeasurable Ending = "unmeasurable" // see the error
)

// Report is what a wait saw. It marshals to JSON; String is the message for people.
type Report struct {
	Ending    Ending         `json:"ending"`
	Started   time.Time      `json:"started"`
	Elapsed   time.Duration  `json:"elapsed"`
	Cause     string         `json:"cause,omitempty"` // why it was cancelled or unmeasurable
	Reproduce string         `json:"reproduce,omitempty"`
	Devices   []DeviceReport `json:"devices"`
}

// DeviceReport is one device of a Report. Sizes are bytes.
type DeviceReport struct {
	Device       Device        `json:"device"`
	Clear        bool          `json:"clear"`
	Memory       Memory        `json:"memory"`  // the last reading
	Bounded      bool          `json:"bounded"` // false: only Settled was asked for
	Target       int64         `json:"target"`  // may be used, owned memory included
	Want         string        `json:"want"`    // where the target comes from
	Owned        []Owner       `json:"owned,omitempty"`
	Trend        Trend         `json:"trend"`
	Samples      int           `json:"samples"`
	Unchanged    time.Duration `json:"unchanged"` // how long before the end used memory last changed
	Low          int64         `json:"low"`       // the lowest used memory seen
	History      []Point       `json:"history"`   // changes, thinned out beyond 64
	Holders      []Process     `json:"holders,omitempty"`
	HoldersError string        `json:"holders_error,omitempty"`
	Unattributed int64         `json:"unattributed"` // used, and in no holder's account
	Lease        *Lessee       `json:"lease,omitempty"`
}

// report closes the watches; a device that is not clear gets its holders joined with /proc and the
// lease files.
func (o *options) report(r Report, watches []*watch, how Ending) Report {
	now := time.Now()
	r.Ending, r.Elapsed = how, now.Sub(r.Started)
	for _, w := range watches {
		if !w.clear && how != endingCleared {
			w.listHolders(now)
		}
		d := DeviceReport{
			Device: w.device, Clear: w.clear, Memory: w.memory, Bounded: w.bounded, Target: w.target, Want: w.text, Owned: w.owned,
			Trend: w.trend(now), Samples: w.samples, Low: w.history.low, History: slices.Clone(w.history.points),
		}
		if w.samples > 0 {
			d.Unchanged = now.Sub(w.history.changed)
		}
		if !w.clear {
			d.Lease, _ = leaseOn(o.leaseDir, w.device.UUID)
			d.Holders, d.Unattributed = o.join(w, d.Lease)
			if w.holdersErr != nil {
				d.HoldersError = w.holdersErr.Error()
			}
		}
		r.Devices = append(r.Devices, d)
	}
	return r
}

func (o *options) join(w *watch, lease *Lessee) (list []Process, unattributed int64) {
	unattributed = w.memory.Used
	for _, h := range w.holders {
		p := process(h)
		p.Leased = lease != nil && lease.covers(h.PID)
		for _, f := range w.first {
			if f.PID == h.PID && f.Known && h.Known {
				p.Grew = h.Bytes - f.Bytes
			}
		}
		if w.listed && !slices.ContainsFunc(w.first, func(f Holder) bool { return f.PID == h.PID }) {
			p.Grew = h.Bytes
		}
		unattributed -= h.Bytes
		list = append(list, p)
	}
	sort.SliceStable(list, func(i, j int) bool { return list[i].Bytes > list[j].Bytes })
	return list, max(0, unattributed)
}

// String is the failure message, or one line when all is clear.
func (r Report) String() string {
	var b strings.Builder
	if r.Ending == endingCleared {
		fmt.Fprintf(&b, "gpuwait: clear after %s:", age(r.Elapsed))
		for i, d := range r.Devices {
			fmt.Fprintf(&b, "%s %s uses %s", []string{"", ","}[min(i, 1)], d.Device.UUID, of(d.Memory, ""))
		}
		return b.String()
	}
	if r.Ending == endingUnmeasurable {
		return r.Cause
	}
	for _, d := range r.Devices {
		if !d.Clear {
			d.write(&b, r)
		}
	}
	switch r.Ending {
	case endingHeld:
		b.WriteString("    stopped early: gpuwait.KeepWaiting() waits on, gpuwait.Patience(d) changes how long identical readings are watched\n")
	case endingCancelled:
		fmt.Fprintf(&b, "    the wait was cut short: %s\n", r.Cause)
	case endingTimeout:
		b.WriteString("    to wait longer: gpuwait.Timeout(d)\n")
	}
	b.WriteString("    to accept what is there: gpuwait.Delta(baseline, slack) or a larger bound; memory kept on purpose: gpuwait.Own(uuid, name, bytes)\n")
	if r.Reproduce != "" {
		fmt.Fprintf(&b, "    to reproduce: %s\n", r.Reproduce)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func (d DeviceReport) write(b *strings.Builder, r Report) {
	if d.Samples == 0 {
		fmt.Fprintf(b, "gpuwait: %s was not measured in %s\n", d.Device, age(r.Elapsed))
		return
	}
	want := ""
	if d.Bounded {
		want = wanted(d.Target, d.Want)
		for _, o := range d.Owned {
			want += fmt.Sprintf(" + %s owned by %s", size(o.Bytes), o.Name)
		}
		if over := d.Memory.Used - d.Target; over > 0 && size(d.Memory.Used) == size(d.Target) {
			want += fmt.Sprintf("; %s over", size(over))
		}
	}
	fmt.Fprintf(b, "gpuwait: %s still holds %s", d.Device, of(d.Memory, want))
	fmt.Fprintf(b, " after %s (%s, last change %s ago)\n", age(r.Elapsed), samples(d.Samples), age(d.Unchanged))
	for _, p := range d.Holders {
		fmt.Fprintf(b, "    %10s  %s\n", p.bytes(), p)
	}
	if d.Unattributed > 0 {
		fmt.Fprintf(b, "    %10s  unattributed (%s)\n", size(d.Unattributed), d.rest())
	}
	if d.Lease != nil {
		fmt.Fprintf(b, "    leased by %s\n", d.Lease)
	}
	if advice := d.advice(); advice != "" {
		fmt.Fprintf(b, "    %s: %s\n", d.Trend, advice)
	}
	if len(d.History) > 1 {
		fmt.Fprintf(b, "    readings: %s\n", d.readings())
	}
}

func (d DeviceReport) rest() string {
	unknown := 0
	for _, p := range d.Holders {
		if !p.Known {
			unknown++
		}
	}
	var why []string
	if unknown > 0 {
		why = append(why, fmt.Sprintf("the driver does not say how much %d of its processes hold", unknown))
	}
	switch {
	case d.Memory.WithReserve:
		why = append(why, "includes the driver's own reserve, which this source cannot tell apart")
	case d.Memory.Reserved > 0:
		why = append(why, fmt.Sprintf("the driver's reserve of %s is not counted", size(d.Memory.Reserved)))
	}
	return strings.Join(append(why, "processes of other containers and users may not be visible"), "; ")
}

func wanted(target int64, why string) string {
	return fmt.Sprintf("want ≤ %s: %s", size(target), why)
}

func (w *watch) want() string {
	if !w.bounded {
		return "not settled"
	}
	return wanted(w.target, w.text)
}

// readings prints the first, the last and a few changes between.
func (d DeviceReport) readings() string {
	h := d.History
	step := max(1, len(h)/6)
	var parts []string
	for i := 0; i < len(h)-1; i += step {
		parts = append(parts, fmt.Sprintf("%s at %s", size(h[i].Used), age(h[i].After)))
	}
	last := h[len(h)-1]
	return strings.Join(append(parts, fmt.Sprintf("%s from %s on", size(last.Used), age(last.After))), ", ")
}

// size formats bytes with a binary unit: "512 B", "63.1 GiB".
func size(n int64) string { return ledger.FormatBytes(n) }

// of prints "63.1 GiB of 139.8 GiB (45%, want ≤ 14.0 GiB: 10% of total)".
func of(m Memory, want string) string {
	in := []string{}
	if m.Total > 0 {
		in = append(in, fmt.Sprintf("%.0f%%", 100*float64(m.Used)/float64(m.Total)))
	}
	if want != "" {
		in = append(in, want)
	}
	if m.Used > m.Total {
		in = append(in, "more than there is: the reading is suspect")
	}
	return fmt.Sprintf("%s of %s (%s)", size(m.Used), size(m.Total), strings.Join(in, ", "))
}

func samples(n int) string {
	if n == 1 {
		return "1 sample"
	}
	return fmt.Sprintf("%d samples", n)
}

// age prints a duration with the precision that a reader needs.
func age(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
