package gpuwait

import (
	"fmt"
	"strings"
	"time"
)

// A wait that lasts says so: first after progressAfter, then every progressEvery.
const (
	progressAfter = 2 * time.Second
	progressEvery = 5 * time.Second
)

// speaker reports the progress of one wait.
type speaker struct {
	report func(string)
	start  time.Time
	next   time.Time
}

func (o *options) speaker(start time.Time) *speaker {
	return &speaker{report: o.progress, start: start, next: start.Add(progressAfter)}
}

// at reports, when it is time to, how long the wait has lasted and what it waits for.
func (s *speaker) at(now time.Time, what func() string) {
	if s.report == nil || now.Before(s.next) {
		return
	}
	s.next = now.Add(progressEvery)
	s.report(fmt.Sprintf("gpuwait: waiting for %s: %s", age(now.Sub(s.start).Round(100*time.Millisecond)), what()))
}

// progressOf names the devices that are not clear, with their largest holders.
func progressOf(watches []*watch) string {
	var parts []string
	for _, w := range watches {
		if w.clear {
			continue
		}
		s := fmt.Sprintf("%s uses %s", w.device, of(w.memory, w.want()))
		if text := holdersText(w.holders); text != "" {
			s += ", held by " + text
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, "; ")
}

// holdersText names at most three holders, the largest first: "pid 12 (50.0 GiB)".
func holdersText(holders []Holder) string {
	var parts []string
	for i, h := range largestFirst(holders) {
		if i == 3 {
			parts = append(parts, fmt.Sprintf("%d more", len(holders)-i))
			break
		}
		parts = append(parts, fmt.Sprintf("pid %d (%s)", h.PID, Process{Holder: h}.bytes()))
	}
	return strings.Join(parts, ", ")
}
