package gpuwait

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// AccountReport is what an account saw. It marshals to JSON; String is the message for people.
type AccountReport struct {
	Ending    Ending          `json:"ending"`
	Started   time.Time       `json:"started"` // the wait for the memory, not the engine
	Elapsed   time.Duration   `json:"elapsed"`
	Cause     string          `json:"cause,omitempty"`
	Reproduce string          `json:"reproduce,omitempty"`
	Advice    string          `json:"advice,omitempty"` // how to accept it, where the caller has options of its own
	Devices   []DeviceAccount `json:"devices"`
}

// DeviceAccount is one device of an AccountReport.
type DeviceAccount struct {
	Device   Device  `json:"device"`
	Verdict  Verdict `json:"verdict"`
	Proof    Proof   `json:"proof,omitempty"`
	Bytes    int64   `json:"bytes"`            // held, or not attributed
	Why      string  `json:"why,omitempty"`    // it is not returned
	Hidden   string  `json:"hidden,omitempty"` // why other processes may not be listed here
	Settled  bool    `json:"settled"`          // the baseline did not move any more
	Baseline Usage   `json:"baseline"`         // before the engine started
	Peak     Usage   `json:"peak"`             // the reading with the most in the family's account
	Before   Usage   `json:"before"`           // the last reading before Returned
	After    Usage   `json:"after"`            // the last reading
	// of the family, when it still holds memory; Grew is since the baseline
	Holders []Process `json:"holders,omitempty"`
	// Forgotten are engines that were never shut down, and whose memory this is.
	Forgotten []ForgottenEngine `json:"forgotten,omitempty"`
}

func (r AccountReport) is(v Verdict) bool {
	return slices.ContainsFunc(r.Devices, func(d DeviceAccount) bool { return d.Verdict == v })
}

// Line is the report in one line: how much this engine held before, at its peak and after, on each
// device it used.
func (r AccountReport) Line() string {
	var parts []string
	unused := 0
	for _, d := range r.Devices {
		if d.Verdict == VerdictReturned && d.Proof == proofUnused {
			unused++
			continue
		}
		parts = append(parts, fmt.Sprintf("%s %s (%s)", d.Device.UUID, d.path(),
			cmp.Or(string(d.Proof), d.Why, string(d.Verdict))))
	}
	if unused > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d GPU(s) not used (%s)", unused, len(r.Devices), proofUnused))
	}
	return strings.Join(parts, "; ")
}

// path is the family's memory before, at its peak and after: "0 B → 56.0 GiB → 0 B". A device whose
// driver does not list the family shows what is in no process's account.
func (d DeviceAccount) path() string {
	if d.Peak.FamilyBytes() == 0 && d.After.FamilyBytes() == 0 {
		return fmt.Sprintf("without a listed holder %s → %s → %s", size(d.Baseline.Unlisted), size(d.Peak.Unlisted),
			size(d.After.Unlisted))
	}
	return fmt.Sprintf("%s → %s → %s", size(d.Baseline.FamilyBytes()), size(d.Peak.FamilyBytes()),
		size(d.After.FamilyBytes()))
}

// String is the failure message; one line when all memory is back.
func (r AccountReport) String() string {
	switch r.Ending {
	case endingCleared:
		return fmt.Sprintf("gpuwait: returned after %s: %s", age(r.Elapsed), r.Line())
	case endingUnmeasurable:
		return r.Cause
	}
	var b strings.Builder
	for _, d := range r.Devices {
		if d.Verdict != VerdictReturned {
			d.write(&b, r.Elapsed)
		}
	}
	switch {
	case r.Ending == endingCancelled:
		fmt.Fprintf(&b, "    the wait was cut short: %s\n", r.Cause)
	case r.Ending == endingHeld && r.Advice == "":
		b.WriteString("    stopped early: nothing changed while the holders live; gpuwait.KeepWaiting() waits on\n")
	case r.Ending == endingHeld:
		b.WriteString("    stopped early: nothing changed while the holders live\n")
	case r.Advice == "":
		b.WriteString("    to wait longer: gpuwait.Timeout(d)\n")
	}
	fmt.Fprintf(&b, "    %s\n",
		cmp.Or(r.Advice, "to accept it: gpuwait.Slack(bytes); memory kept on purpose: gpuwait.Own(uuid, name, bytes)"))
	if r.Reproduce != "" {
		fmt.Fprintf(&b, "    to reproduce: %s\n", r.Reproduce)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// headline says what is wrong with one device, in one line.
func (d DeviceAccount) headline() string {
	switch {
	case d.Verdict == VerdictHeld && len(d.Forgotten) > 0:
		return fmt.Sprintf("%s: %s: %s", d.Device, d.amount(), forgottenText(d.Forgotten))
	case d.Verdict == VerdictHeld && len(d.Holders) > 0:
		return fmt.Sprintf("%s: this engine's processes still hold %s", d.Device, d.amount())
	case d.Verdict == VerdictHeld:
		return fmt.Sprintf("%s: %s that this engine held is %s", d.Device, d.amount(), d.Why)
	case d.Verdict == VerdictUnproven:
		return fmt.Sprintf("%s: cannot tell whether this engine's memory is back: %s", d.Device, d.Why)
	}
	return fmt.Sprintf("%s was not measured", d.Device)
}

func (d DeviceAccount) amount() string {
	if d.Bytes == 0 {
		return "memory (" + d.Why + ")"
	}
	return size(d.Bytes)
}

func (d DeviceAccount) write(b *strings.Builder, waited time.Duration) {
	fmt.Fprintf(b, "gpuwait: %s, after %s\n", d.headline(), age(waited))
	for _, p := range d.Holders {
		fmt.Fprintf(b, "    %10s  %s  (%s before this engine started)\n", p.bytes(), p, size(p.Bytes-p.Grew))
	}
	for _, e := range d.Forgotten {
		fmt.Fprintf(b, "    %s:\n        %s\n", e.text, e)
	}
	for _, row := range []struct {
		name string
		u    Usage
	}{{"before it", d.Baseline}, {"at its peak", d.Peak}, {"now", d.After}} {
		fmt.Fprintf(b, "    %-11s %s\n", row.name, row.u)
	}
	if !d.Settled {
		b.WriteString("    the first reading was still moving when the engine started\n")
	}
	if d.Hidden != "" {
		fmt.Fprintf(b, "    %s\n", d.Hidden)
	}
}

// String formats a reading in one line: what is used, by this engine's processes, by others, and by
// none that is listed.
func (u Usage) String() string {
	s := fmt.Sprintf("%s of %s used: this engine %s", size(u.Memory.Used), size(u.Memory.Total), size(u.FamilyBytes()))
	if len(u.Others) > 0 {
		s += fmt.Sprintf(", others %s: %s", size(sumBytes(u.Others)), holdersText(u.Others))
	}
	if u.Unlisted > 0 {
		s += fmt.Sprintf(", without a listed holder %s", size(u.Unlisted))
	}
	if u.Refused != "" {
		s += fmt.Sprintf(" (holders not listed: %s)", u.Refused)
	}
	return s
}
