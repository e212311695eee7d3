package gpuwait

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrBusy is in the error of an Acquire that could not have its devices in time.
var ErrBusy = errors.New("devices are leased or not free")

// BusyError names the holders of the devices. Its text is the whole message.
type BusyError struct {
	Wanted  int
	MinFree int64
	Waited  time.Duration
	Devices []Candidate
	text    string
	cause   error
}

// Candidate is one device of a BusyError.
type Candidate struct {
	Device Device
	Lessee *Lessee // nil: not leased
	Reason string  // why it could not be taken, when it is not leased
}

func (e *BusyError) Error() string { return e.text }

// Unwrap returns ErrBusy and what ended the wait.
func (e *BusyError) Unwrap() []error {
	if e.cause == nil {
		return []error{ErrBusy}
	}
	return []error{ErrBusy, e.cause}
}

func (a *attempt) busy(cause error) *BusyError {
	e := &BusyError{Wanted: a.n, MinFree: a.o.minFree, Waited: time.Since(a.start), cause: cause}
	var b strings.Builder
	fmt.Fprintf(&b, "gpuwait: %s could not lease %d of %d devices", a.o.name, a.n, len(a.candidates))
	if e.MinFree > 0 {
		fmt.Fprintf(&b, " with %s free", size(e.MinFree))
	}
	fmt.Fprintf(&b, " in %s\n", age(e.Waited))
	for _, d := range a.candidates {
		c := Candidate{Device: d, Reason: cmp.Or(a.why[d.UUID],
			"free, and waiting for the others, or for those who came first")}
		if c.Lessee, _ = leaseOn(a.dir, d.UUID); c.Lessee != nil {
			c.Reason = ""
			fmt.Fprintf(&b, "    %s  leased by %s\n", d, c.Lessee)
		} else {
			fmt.Fprintf(&b, "    %s  %s\n", d, c.Reason)
		}
		e.Devices = append(e.Devices, c)
	}
	if path := gatePath(a.dir); a.gateHeld {
		fmt.Fprintf(&b, "    %s, under which devices are taken, is held%s\n", path, byPIDs(opened(path)))
	}
	if cause != nil {
		fmt.Fprintf(&b, "    %v\n", cause)
	}
	b.WriteString("    to wait longer: go test -timeout, or gpuwait.Timeout(d); to skip instead: gpuwait.SkipIfBusy()\n")
	if a.o.reproduce != "" {
		fmt.Fprintf(&b, "    to reproduce: %s\n", a.o.reproduce)
	}
	e.text = strings.TrimSuffix(b.String(), "\n")
	return e
}

// summary is the message without its advice, in one line.
func (e *BusyError) summary() string {
	var parts []string
	for _, c := range e.Devices {
		reason := c.Reason
		if c.Lessee != nil {
			reason = "leased by " + c.Lessee.String()
		}
		parts = append(parts, fmt.Sprintf("%s %s", c.Device, reason))
	}
	return fmt.Sprintf("%d of %d devices wanted; %s", e.Wanted, len(e.Devices), strings.Join(parts, "; "))
}

func byPIDs(pids []int) string {
	if len(pids) == 0 {
		return ""
	}
	return fmt.Sprintf(" (open in pid %s)", strings.Trim(fmt.Sprint(pids), "[]"))
}
