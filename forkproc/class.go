package forkproc

import (
	"strings"
	"syscall"

	"github.com/enginetest/enginetest/verdict"
)

// Verdicts returns what a child's end says about its cause. A test that failed in the child has
// said why in its own output, and a Go panic has its stack there: both have none here.
func (o *Outcome) Verdicts() []verdict.Verdict {
	class := o.class()
	if class == "" {
		return nil
	}
	reason, _, _ := strings.Cut(o.Reason, "\n")
	return []verdict.Verdict{{Class: class, Source: "forkproc", Message: reason, Resource: "process", Took: o.Duration}}
}

func (o *Outcome) class() verdict.Class {
	switch o.Status {
	case StatusOOMKilled:
		return verdict.ClassCapacity
	case StatusTimedOut:
		return verdict.ClassTimeout
	case StatusExited:
		return verdict.ClassEngine
	case StatusKilled:
		return signalClass(o.Signal)
	case StatusPanicked:
		if strings.HasPrefix(o.Crash, "SIG") {
			return verdict.ClassEngine
		}
	}
	return ""
}

// signalClass tells a crash from a process that something outside has killed.
func signalClass(s syscall.Signal) verdict.Class {
	switch s {
	case syscall.SIGKILL:
		return verdict.ClassCapacity // as by a limit on memory that does not say so
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP:
		return verdict.ClassInfra
	}
	return verdict.ClassEngine
}

// leftovers are leaks, one for each thing that the child left behind.
func (o *Outcome) leftovers() (list []verdict.Verdict) {
	for _, l := range o.Leftovers {
		list = append(list, verdict.Verdict{
			Class: verdict.ClassLeak, Signature: verdict.Signature(verdict.ClassLeak,
				l.Kind+" "+l.Name), Source: "forkproc",
			Message: "left behind: " + l.Text, Resource: l.Kind, Holder: l.Name,
		})
	}
	return list
}
