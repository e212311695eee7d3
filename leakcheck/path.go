package leakcheck

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/enginetest/enginetest/leakcheck/internal/retain"
	"github.com/enginetest/enginetest/ledger"
)

// Step is one element of a retention path. The first is a root, the last the tracked object.
type Step struct {
	Kind string  // "global", "goroutine", "finalizer", "cleanup", "timer", "test cleanup", "object", "unknown root"
	Name string  // variable, function or type
	Edge string  // how it refers to the next one: ".entries[17].req", ` key`, "captured b", "receiver"
	Type string  // of a global variable
	Note string  // where it was made, how its type is known
	Addr uintptr // of the object, or of the root's pointer
	Size uintptr // of the object's slot; 0 for a root
}

// explain adds to findings the paths that keep their objects. Findings on the path of another one
// are listed under it.
func explain(refs []*Ref, fs []Finding) []Finding {
	targets, which := targetsOf(refs)
	if len(targets) == 0 {
		late(refs, fs, time.Now())
		return fs
	}
	verdict := time.Now()
	paths, err := retain.Explain(targets, retain.Options{})
	if err != nil {
		fs[which[0]].Note = fmt.Sprintf("no retention path: %v", err)
		return fs
	}
	under := map[int]bool{}
	stands := len(targets) == len(refs)
	for k, p := range paths {
		stands = stands && p.Stands
		f := &fs[which[k]]
		if p.Excused {
			under[which[k]] = true
			continue
		}
		fill(f, p, refs[which[k]].typ.String())
		if len(p.On) > 0 { // the nearest tracked object on the way is the one to look at
			owner := which[p.On[len(p.On)-1]]
			fs[owner].Also = append(fs[owner].Also, f.Name)
			under[which[k]] = true
		}
	}
	if !stands {
		late(refs, fs, verdict)
	}
	return group(fs, under)
}

// late marks the findings about objects that have gone since the verdict.
func late(refs []*Ref, fs []Finding, verdict time.Time) {
	runtime.GC()
	for i, r := range refs {
		if f := &fs[i]; !r.reachable() && !r.resurrected {
			f.Text = fmt.Sprintf("%s; it went at most %s later", f.Text, round(time.Since(verdict)))
			f.Note = "slow, not leaked: Patience sets how long a check waits"
			f.cause += ", late"
		}
	}
}

// targetsOf lists the refs whose objects are still there, and their numbers.
func targetsOf(refs []*Ref) (targets []retain.Target, which []int) {
	for i, r := range refs {
		if a := r.address(); a != 0 {
			targets, which = append(targets, retain.Target{Addr: a, Type: r.typ, Alive: r.reachable}), append(which, i)
		}
	}
	return targets, which
}

// fill adds the path to a finding about an object of type kept.
func fill(f *Finding, p retain.Path, kept string) {
	if p.Gone {
		return
	}
	if p.Err != nil {
		f.Note = "no retention path: " + p.Err.Error()
		return
	}
	f.Path = stepsOf(p)
	f.Detail, f.cause, f.Note = retain.Format(p.Steps), p.Owner, p.Hint
	f.Signature = string(KindReference) + ": " + p.Cause + " → " + kept
	if p.Reaches >= 64<<10 {
		f.Text += fmt.Sprintf("; %s of heap can be reached from it", ledger.FormatBytes(int64(p.Reaches)))
	}
}

func stepsOf(p retain.Path) (out []Step) {
	for _, s := range p.Steps {
		out = append(out, Step{
			Kind: s.Kind, Name: s.Name, Edge: s.Edge, Type: s.Type, Note: s.Note, Addr: s.Addr,
			Size: s.Size,
		})
	}
	return out
}

// group puts findings with the same owner together, and drops those that hang under another one.
func group(fs []Finding, under map[int]bool) (out []Finding) {
	first := map[string]int{}
	for i, f := range fs {
		if under[i] {
			continue
		}
		if k, ok := first[f.cause]; ok && len(f.Path) > 0 {
			out[k].Also = append(out[k].Also, f.Name)
			continue
		}
		first[f.cause] = len(out)
		out = append(out, f)
	}
	for i, f := range out {
		if len(f.Also) > 0 {
			out[i].Detail += "and keeps, by this path or one that starts like it: " + strings.Join(f.Also, ", ") + "\n"
		}
	}
	return out
}

// explainSites says what keeps objects that were allocated at these places ("file:line") and were
// not there before, alike paths together.
func explainSites(sites []string, before map[uint64]bool) (fs []Finding) {
	paths, err := retain.ExplainSites(sites, before, 4)
	if err != nil {
		return []Finding{{Text: fmt.Sprintf("what keeps them is not known: %v", err)}}
	}
	seen := map[string]bool{}
	for _, p := range paths {
		var f Finding
		if fill(&f, p, "*"); p.Err == nil && !p.Gone && !p.Excused && !seen[f.cause] && len(fs) < 3 {
			seen[f.cause] = true
			f.Text = "one of these objects is kept by"
			fs = append(fs, f)
		}
	}
	return fs
}
