package leakcheck

import (
	"runtime/pprof"
	"strings"

	"github.com/enginetest/enginetest/leakcheck/internal/retain"
)

// A check that runs in a test's cleanup can find objects that only the test framework keeps, or a
// frame that the test left by t.FailNow, t.Skip or a panic. No one can let go of those, so they are
// not the test's leak.

// mayExcuse reports whether a goroutine is in such a state. exiting: one is leaving its frames.
func mayExcuse() (excuse, exiting bool) {
	old := getLabels()
	setLabels(nil)
	defer setLabels(old)
	var text strings.Builder
	pprof.Lookup("goroutine").WriteTo(&text, 1) //nolint:errcheck // a strings.Builder takes everything
	for stack := range strings.SplitSeq(text.String(), "\n\n") {
		in := func(fn string) bool { return strings.Contains(stack, "\t"+fn) }
		switch {
		case in("testing.tRunner+") && (in("runtime.Goexit+") || in("runtime.gopanic+")):
			return true, true
		case in("testing.(*common).runCleanup+"), in("github.com/onsi/ginkgo/v2/internal."):
			excuse = true
		}
	}
	return excuse, false
}

// blamed leaves out the refs that only a framework or an exiting test keeps. Where no heap dump can
// tell, an exiting test is believed.
func blamed(refs []*Ref) []*Ref {
	excuse, exiting := mayExcuse()
	if !excuse {
		return refs
	}
	targets, which := targetsOf(refs)
	if len(targets) == 0 {
		return refs
	}
	held, err := retain.Held(targets)
	if err != nil {
		if exiting {
			return nil
		}
		return refs
	}
	excused := map[*Ref]bool{}
	for k, i := range which {
		excused[refs[i]] = !held[k]
	}
	var out []*Ref
	for _, r := range refs {
		if !excused[r] {
			out = append(out, r)
		}
	}
	return out
}
