package harness

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/enginetest/enginetest/leakcheck"
)

// hostState compares descriptors, mappings, shared memory, sockets, children and the entries of
// shared folders with the baseline. While something else runs in this process, only what evidence
// attributes to this engine is blamed on it.
func (f *Fixture) hostState(ctx context.Context) (c checked, err error) {
	defer f.evidence.makers.Close()
	alone := f.host.leave() && f.sole()
	switch {
	case f.opts.noHost != "":
		return c, skipped("%s", f.opts.noHost)
	case f.host.err != nil:
		return c, skipped("%v", f.host.err)
	}
	others, err := f.host.state.RestoredFor(ctx, leakcheck.Claims{
		All: alone, Process: f.evidence.process, Path: f.evidence.path(f.opts.dirs), Entry: f.evidence.entry(alone),
	}, slices.Concat(acceptDriver(), f.opts.allow)...)
	c.notes = f.unattributed(alone, others)
	var found *leakcheck.Error
	switch {
	case !errors.As(err, &found):
		c.detail = f.restored(alone, others, err)
		return c, err
	case err != error(found): //nolint:errorlint // itself: joined with another it is also about the options
		return c, err
	case alone:
		return c, f.explained(found)
	}
	return c, found
}

// restored says what a passing check has seen.
func (f *Fixture) restored(alone bool, others []leakcheck.Finding, err error) string {
	switch {
	case !alone && len(others) > 0:
		return "nothing that can be attributed to this engine is left; " + besides
	case !alone:
		return "files, sockets, mappings, shared memory and children are as before"
	}
	detail := "files, sockets, mappings, shared memory and children are as before"
	if kept := f.host.ofDriver(); kept != "" && err == nil {
		detail += fmt.Sprintf(" (but for %s of the CUDA driver, which keeps them until the process ends)", kept)
	}
	return detail
}

const besides = "other tests or fixtures ran in this process"

// mostNotes is how many things are listed one by one.
const mostNotes = 5

// unattributed lists what is new and may be another's, and is therefore not blamed.
func (f *Fixture) unattributed(alone bool, others []leakcheck.Finding) (notes []string) {
	if len(others) == 0 {
		return nil
	}
	why := besides + f.forgottenToo()
	if alone {
		why = "other processes use the folder"
		if unseen := f.evidence.unseen(); unseen != "" {
			why += ", and " + unseen
		}
	}
	for _, o := range others[:min(len(others), mostNotes)] {
		notes = append(notes, o.Text)
	}
	if n := len(others) - mostNotes; n > 0 {
		notes = append(notes, fmt.Sprintf("%d more", n))
	}
	notes[0] = fmt.Sprintf("not blamed, because %s: %s", why, notes[0])
	return notes
}
