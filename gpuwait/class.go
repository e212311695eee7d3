package gpuwait

import (
	"encoding/json"
	"fmt"

	"github.com/enginetest/enginetest/verdict"
)

// Verdicts returns one verdict per device that is not clear: a leak when this process or one of its
// family holds memory of it, a lack of capacity when others do.
func (e *NotClearError) Verdicts() (list []verdict.Verdict) {
	details, _ := json.Marshal(e.Report) // plain data
	for _, d := range e.Report.Devices {
		if d.Clear {
			continue
		}
		v := verdict.Verdict{
			Class: verdict.ClassCapacity, Source: "gpuwait", Message: fmt.Sprintf("%s still holds %s", d.Device,
				size(d.Memory.Used)),
			Resource: d.Device.UUID, Value: d.Memory.Used, Bound: d.Target, Unit: "bytes", Took: e.Report.Elapsed,
			Repro: e.Report.Reproduce, Details: details,
		}
		for _, p := range d.Holders {
			if p.Relation != "" {
				v.Class = verdict.ClassLeak
			}
			if v.Holder == "" || p.Relation != "" {
				v.Holder = p.String()
			}
		}
		v.Signature = verdict.Signature(v.Class, "device memory is not clear: "+string(d.Trend))
		list, details = append(list, v), nil
	}
	return list
}

// Class returns that others have the devices.
func (e *BusyError) Class() verdict.Class { return verdict.ClassCapacity }
