package harness

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/enginetest/enginetest/leakcheck"
)

// hostState compares descriptors, mappings, shared memory, sockets and children with the baseline.
// All of them belong to the whole process: while something else runs in it, what is new cannot be
// attributed, and is not blamed on this engine.
func (f *Fixture) hostState(ctx context.Context) (string, error) {
	alone := f.host.leave()
	switch {
	case f.opts.noHost != "":
		return "", skipped("%s", f.opts.noHost)
	case !alone:
		return "", skipped("other fixtures were alive at the same time, and descriptors and mappings belong to the whole process%s",
			f.forgottenToo())
	case f.host.err != nil:
		return "", skipped("%v", f.host.err)
	}
	others := leakcheck.OtherTests()
	if others > 0 { // what is this engine's is mostly gone at once
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Second)
		defer cancel()
	}
	err := f.host.state.Restored(ctx, slices.Concat(acceptDriver(), f.opts.allow)...)
	var found *leakcheck.Error
	if !errors.As(err, &found) {
		detail := "files, sockets, mappings, shared memory and children are as before"
		if kept := f.host.ofDriver(); kept != "" && err == nil {
			detail += fmt.Sprintf(" (but for %s of the CUDA driver, which keeps them until the process ends)", kept)
		}
		return detail, err
	}
	if others = max(others, leakcheck.OtherTests()); others > 0 {
		return "", skipped("%d other test(s) run in this process, and what is new may be theirs: %s", others,
			briefly(found))
	}
	if err != error(found) { //nolint:errorlint // itself: joined with another it is also about the options
		return "", err
	}
	return "", f.explained(found)
}

// briefly names the first findings.
func briefly(e *leakcheck.Error) string {
	text := e.Findings[0].Text
	if n := len(e.Findings); n > 1 {
		text += fmt.Sprintf(", and %d more", n-1)
	}
	return text
}
