package gpuwait

import (
	"fmt"
	"slices"
	"strings"
)

// Verdict reports whether a family's memory is back.
type Verdict string

// The verdicts.
const (
	VerdictReturned Verdict = "returned" // the family holds nothing on the device: Proof says how that is known
	VerdictHeld     Verdict = "held"     // the family still holds memory: its processes are named
	VerdictUnproven Verdict = "unproven" // memory is held, or may be, and cannot be attributed
)

// Proof is the evidence for a VerdictReturned, in words.
type Proof string

// The proofs, the strongest first. The last one is weaker: it trusts that no other process gave back memory at the same
// time.
const (
	proofListed   Proof = "the driver listed this engine's processes with their memory, and lists no more than before it started"
	proofUnused   Proof = "no process of this engine has had a GPU mapped"
	proofUnmapped Proof = "no living process of this engine has a GPU mapped, and memory without a listed holder is back at the baseline"
	proofTotal    Proof = "weaker: memory without a listed holder is back at the baseline"
)

// judgment is the verdict on one device.
type judgment struct {
	verdict Verdict
	proof   Proof
	bytes   int64 // held or not attributed
	why     string
}

func returned(p Proof) judgment { return judgment{verdict: VerdictReturned, proof: p} }

func unproven(bytes int64, format string, args ...any) judgment {
	return judgment{verdict: VerdictUnproven, bytes: max(0, bytes), why: fmt.Sprintf(format, args...)}
}

// judge decides about the last reading of a device. slack is what the family may keep, owned what
// live fixtures own now, and mapped reports whether the family has a GPU mapped; it is only asked
// when the driver does not list the family.
func (a *Account) judge(d *deviceAccount, slack, owned int64, mapped func() bool) judgment {
	now, grew := d.last, owned-d.owned
	if now.listErr != nil && d.listed {
		return unproven(0, "the driver has stopped listing processes: %v", now.listErr)
	}
	if j := d.excess(slack, grew); j.verdict != "" {
		return j
	}
	if j := d.dipped(slack, owned, grew); j.verdict != "" {
		return j
	}
	if a.lists(d.device.Vendor) {
		return a.reclaimed(d, slack)
	}
	return a.unlisted(d, slack, grew, mapped)
}

// lists reports whether a vendor's driver has listed the family on some device: then one on which
// it is not listed has nothing of it.
func (a *Account) lists(v Vendor) bool {
	return slices.ContainsFunc(a.devices, func(d *deviceAccount) bool { return d.listed && d.device.Vendor == v })
}

// excess finds processes of the family that hold more than at the baseline, beyond the slack and
// what live fixtures own.
func (d *deviceAccount) excess(slack, grew int64) (j judgment) {
	var grown, kept, had int64
	for id, h := range d.last.family {
		before, was := d.base.family[id]
		if !h.Known && !was {
			return judgment{verdict: VerdictHeld, why: "the driver does not say how much"}
		}
		grown += max(0, h.Bytes-before.Bytes)
	}
	for id, before := range d.base.family {
		had += before.Bytes
		kept += d.last.held(id)
	}
	over := grown - max(0, grew)
	if grew < 0 { // a fixture that was live at the baseline has ended: its memory is not an allowance any more
		over = max(over, kept-max(0, had+grew))
	}
	if over > slack {
		return judgment{verdict: VerdictHeld, bytes: over}
	}
	return j
}

// dipped finds a process whose baseline means nothing any more: it held less in between, so that
// what it holds now, though no more than at the baseline, may be this engine's.
func (d *deviceAccount) dipped(slack, owned, grew int64) (j judgment) {
	for id, before := range d.base.family {
		holds := d.last.held(id)
		if holds > slack+owned && before.Bytes-d.low[id] > slack+max(0, -grew) {
			return unproven(holds, "pid %d held %s before this engine started, %s in between and %s now: "+
				"an earlier owner let go after the baseline, so what is left may be this engine's",
				id.pid, size(before.Bytes), size(d.low[id]), size(holds))
		}
	}
	return j
}

// reclaimed judges a family that the driver listed, and that holds nothing now: the memory must
// have left the device as well.
func (a *Account) reclaimed(d *deviceAccount, slack int64) judgment {
	switch {
	case d.stranded <= slack:
		return returned(proofListed)
	case a.hidden != "":
		return unproven(d.stranded,
			"this engine's processes are not listed any more and %s is in no process's account: the driver is still "+
				"reclaiming it, or another process that is not listed took it (%s)", size(d.stranded), a.hidden)
	case d.strandedOthers > slack:
		return unproven(d.stranded, "%s is in no process's account since this engine and another process let go",
			size(d.stranded))
	}
	return judgment{
		verdict: VerdictHeld, bytes: d.stranded,
		why: "in no process's account since this engine's processes let go: " +
			"the driver has not reclaimed it",
	}
}

// unlisted judges a family that the driver never listed.
func (a *Account) unlisted(d *deviceAccount, slack, grew int64, mapped func() bool) judgment {
	open := mapped()
	if !open && !a.mapped {
		return returned(proofUnused)
	}
	rise := d.last.Unlisted - d.base.Unlisted - grew
	switch {
	case rise > slack:
		return unproven(rise, "the driver does not list this engine's processes (%s), and memory without a listed holder is %s above the baseline",
			d.whyUnlisted(a.hidden), size(rise))
	case !open:
		return returned(proofUnmapped)
	}
	if fell := d.base.Unlisted - d.lowUnlisted; fell > slack+max(0, -grew) {
		return unproven(d.last.Unlisted,
			"the driver does not list this engine's processes (%s), and memory without a listed holder fell by %s "+
				"after the baseline: another process let go, so the total proves nothing", d.whyUnlisted(a.hidden), size(fell))
	}
	return returned(proofTotal)
}

func (d *deviceAccount) whyUnlisted(hidden string) string {
	var why []string
	if d.last.listErr != nil {
		why = append(why, d.last.listErr.Error())
	}
	if hidden != "" {
		why = append(why, hidden)
	}
	if d.device.Parent != "" {
		why = append(why, "a MIG slice may have no list of its own")
	}
	if slices.ContainsFunc(d.last.Family, func(h Holder) bool { return !h.Known }) {
		why = append(why, "the driver lists them without their bytes")
	}
	if len(why) == 0 {
		return "for a reason that it does not give"
	}
	return strings.Join(why, "; ")
}
