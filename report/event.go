package report

import (
	"encoding/json"
	"strings"
	"time"
)

// event is one line of go test -json.
type event struct {
	Time        time.Time
	Action      string
	Package     string
	Test        string
	Elapsed     float64
	Output      string
	Key, Value  string // of an attribute
	FailedBuild string
	ImportPath  string // of build-output and build-fail
}

func parseEvent(line string) (event, bool) {
	var e event
	if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
		return event{}, false
	}
	return e, true
}
