package retain

import (
	"io"
	"runtime"
	"runtime/pprof"
)

// LeakProfile lets the runtime look for goroutines that can never run again, and runs read while stack
// dumps mark them "(leaked)". It reports whether this Go has such a profile: from 1.27 on, and 1.26
// when built with GOEXPERIMENT=goroutineleakprofile. A mutex waiter is only found by the second pass.
func LeakProfile(read func()) bool {
	p := pprof.Lookup("goroutineleak")
	if p == nil {
		return false
	}
	one.Lock()
	defer one.Unlock()
	for range 2 {
		p.WriteTo(io.Discard, 0) //nolint:errcheck // io.Discard takes everything
	}
	read()
	takeBack()
	return true
}

func stackText() []byte {
	for n := 1 << 18; ; n *= 2 {
		buf := make([]byte, n)
		if k := runtime.Stack(buf, true); k < n {
			return buf[:k]
		}
	}
}
