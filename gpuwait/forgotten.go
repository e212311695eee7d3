package gpuwait

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/enginetest/enginetest/internal/engines"
)

// ForgottenEngine is an engine that was opened after the baseline and never shut down: what a
// process of the family still holds is its memory.
type ForgottenEngine struct {
	Name  string `json:"name,omitempty"`
	Place string `json:"place"` // of the call that opened it: "app_test.go:44"
	PID   int    `json:"pid"`   // the process that holds its memory
	Bytes int64  `json:"bytes"` // by its own ledger, on this device; 0 when that is not known
	// Driver is what else the driver opened in this process since the baseline, for people.
	Driver string `json:"driver,omitempty"`
	text   string
}

// forgotten lists the engines that explain what the holders have. One that runs in this process
// explains it only when its ledger has memory on the device.
func forgotten(uuid string, since time.Time, holders []Process) (list []ForgottenEngine) {
	for _, e := range engines.Forgotten(since) {
		bytes := e.On(uuid)
		add := func(pid int) {
			list = append(list, ForgottenEngine{Name: e.Name, Place: e.Place, PID: pid, Bytes: bytes, text: e.String()})
		}
		if len(holders) == 0 && bytes > 0 { // the driver lists none
			add(os.Getpid())
		}
		for _, p := range holders {
			if p.PID == os.Getpid() && bytes > 0 && len(e.PIDs) == 0 || Descendants(e.PIDs...)(p.PID) {
				add(p.PID)
			}
		}
	}
	return list
}

// forgottenText names the engines: "engine opened at app_test.go:44, never shut down".
func forgottenText(list []ForgottenEngine) string {
	var parts []string
	for _, e := range list {
		if !slices.Contains(parts, e.text) {
			parts = append(parts, e.text)
		}
	}
	return strings.Join(parts, "; ")
}

// String is the line of a report: the engine's own memory, and where it is.
func (e ForgottenEngine) String() string {
	if e.Bytes == 0 {
		return fmt.Sprintf("its memory is in pid %d", e.PID)
	}
	s := fmt.Sprintf("by its ledger %s of it; the rest is what the driver took for it", size(e.Bytes))
	if e.Driver != "" {
		s += ", and so are " + e.Driver
	}
	return s
}
