package proc

import (
	"fmt"
	"syscall"
	"time"
)

// An Exit is the end of a process.
type Exit struct {
	Code    int            // -1 when a signal ended it, or when the end was not seen
	Signal  syscall.Signal // 0 when none did
	Core    bool           // the kernel wrote a core dump
	OOM     string         // why the SIGKILL is likely the OOM killer's; empty when it is not
	Unknown string         // why the end was not seen; empty when it was
	At      time.Time      // when this process learned of it
}

// String describes the end: "exited with code 7", "was killed by SIGSEGV".
func (e Exit) String() string {
	switch {
	case e.Unknown != "":
		return "ended unseen: " + e.Unknown
	case e.Signal == 0:
		return fmt.Sprintf("exited with code %d", e.Code)
	case e.OOM != "":
		return fmt.Sprintf("was killed by %s, likely the kernel's OOM killer: %s", SignalName(e.Signal), e.OOM)
	}
	return "was killed by " + SignalName(e.Signal)
}

func exitOf(ws syscall.WaitStatus) Exit {
	if ws.Signaled() {
		return Exit{Code: -1, Signal: ws.Signal(), Core: ws.CoreDump()}
	}
	return Exit{Code: ws.ExitStatus()}
}
