package gpuwait

import (
	"fmt"
	"time"
)

// Trend says what a device's memory did while it was watched: clear, held, falling, rising,
// refilled, held by no process, or unknown. Each suggests something else to do; see
// docs/waiting.md.
type Trend string

const (
	trendClear   Trend = "clear"              // the condition is met
	trendHeld    Trend = "held"               // unchanged, with live holders: they will not let go by themselves
	trendFalling Trend = "falling"            // on its way: wait longer
	trendRising  Trend = "rising"             // another process is allocating
	trendRefill  Trend = "refilled"           // was lower, perhaps even clear, during the wait
	trendUnowned Trend = "held by no process" // the driver is reclaiming, or the holder is not visible from here
	trendUnknown Trend = "unknown"            // holders cannot be listed
)

// Point is a change of used memory.
type Point struct {
	After time.Duration `json:"after"` // since the wait began
	Used  int64         `json:"used"`
}

// maxPoints bounds the history of one device; beyond it every other point between the first and the
// newest is dropped.
const maxPoints = 64

// history keeps the readings at which used memory changed.
type history struct {
	start    time.Time
	points   []Point
	changed  time.Time // when the newest point was seen
	lastSeen time.Time
	low      int64
}

func (h *history) add(now time.Time, used int64) {
	if len(h.points) == 0 {
		h.start, h.low = now, used
	}
	h.lastSeen = now
	h.low = min(h.low, used)
	if n := len(h.points); n > 0 && h.points[n-1].Used == used {
		return
	}
	h.changed = now
	if len(h.points) == maxPoints {
		kept := h.points[:1]
		for i := 2; i < maxPoints; i += 2 {
			kept = append(kept, h.points[i])
		}
		h.points = kept
	}
	h.points = append(h.points, Point{After: now.Sub(h.start), Used: used})
}

// trend classifies a device that was watched until now.
func (w *watch) trend(now time.Time) Trend {
	h := &w.history
	if w.clear {
		return trendClear
	}
	if len(h.points) == 0 {
		return trendUnknown
	}
	last := h.points[len(h.points)-1].Used
	moving := len(h.points) > 1 && now.Sub(h.changed) < max(time.Second, now.Sub(h.start)/4)
	switch {
	case moving && last < h.points[len(h.points)-2].Used:
		return trendFalling
	case last > h.low && h.low < h.points[0].Used:
		return trendRefill
	case last > h.points[0].Used:
		return trendRising
	case w.holdersErr != nil:
		return trendUnknown
	case len(w.holders) == 0:
		return trendUnowned
	}
	return trendHeld
}

// advice is what the trend means for the person who reads the message.
func (d DeviceReport) advice() string {
	switch d.Trend {
	case trendHeld:
		if d.Unchanged < 5*time.Second {
			return "its holders live, and have not let go yet"
		}
		return "unchanged while its holders live: waiting longer will not help; end them, or find out why their owner did not"
	case trendFalling:
		return "the wait was too short; the memory is not stuck"
	case trendRising:
		return "it grew during the wait" + d.growers() +
			": a process is allocating on this device now; lease it (gpuwait.Acquire) to be alone"
	case trendRefill:
		return fmt.Sprintf("it was down to %s during the wait and rose again%s: another process started; lease the device (gpuwait.Acquire) to be alone", size(d.Low), d.growers())
	case trendUnowned:
		return "no process is listed: the driver is still reclaiming, or the holder is in another container or PID namespace, or another user's"
	case trendUnknown:
		return "the holders cannot be listed: " + d.HoldersError
	}
	return ""
}

func (d DeviceReport) growers() string {
	for _, p := range d.Holders {
		if p.Grew > 0 {
			return fmt.Sprintf(" (pid %d by %s)", p.PID, size(p.Grew))
		}
	}
	return ""
}
