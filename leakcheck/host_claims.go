package leakcheck

import (
	"cmp"
	"maps"
	"slices"
)

// Claims says which of the things that are new are one owner's, each with its evidence: "" is no
// evidence. A nil function claims nothing.
type Claims struct {
	// All claims whatever belongs to this process: nothing else ran in it.
	All bool
	// Process is asked about a child or descendant; started is as /proc has it.
	Process func(pid int, started int64) string
	// Path is asked about the file of a descriptor or mapping, and the name of a unix socket.
	Path func(path string) string
	// Entry is asked about a new entry of a folder that other processes use too: /dev/shm, and the
	// one for temporary files. foreign: it is known to be another's, and no one is told of it.
	Entry func(path string) (evidence string, foreign bool)
}

// of looks for a claim. foreign is for what is known to be another process's.
func (c Claims) of(it hostItem) (evidence string, claimed, foreign bool) {
	switch {
	case c.All && (!it.shared || it.sure):
		return "", true, false
	case it.shared && c.Entry == nil:
		return "", false, true
	case it.shared:
		evidence, foreign = c.Entry(it.path)
	case it.pid != 0 && c.Process != nil:
		evidence = c.Process(it.pid, it.started)
	case it.path != "" && c.Path != nil:
		evidence = c.Path(it.path)
	}
	return evidence, evidence != "", foreign
}

// sortClaimed lists what is in after and was not in before: what is claimed, and the rest, without
// what is known to be another process's.
func sortClaimed(before, after *HostState, claims Claims) (mine, others []Finding) {
	for _, key := range slices.Sorted(maps.Keys(after.items)) {
		it := after.items[key]
		if _, ok := before.items[key]; ok || it.hidden {
			continue
		}
		evidence, claimed, foreign := claims.of(it)
		if foreign || !it.describe() {
			continue
		}
		f := Finding{
			Kind: it.kind, Name: key, Text: it.name, Signature: signature(it.kind, it.what), Note: evidence,
			accept: signature(it.kind, pattern(it.what)),
		}
		if claimed {
			mine = append(mine, f)
		} else {
			others = append(others, f)
		}
	}
	processesFirst(mine)
	processesFirst(others)
	return mine, others
}

func processesFirst(list []Finding) {
	order := []Kind{
		KindProcess, KindThread, KindSocket, KindDescriptor, KindMapping, KindSharedMemory, KindTemporaryFile,
	}
	rank := func(f Finding) int { return slices.Index(order, f.Kind) }
	slices.SortStableFunc(list, func(a, b Finding) int { return cmp.Compare(rank(a), rank(b)) })
}

// unallowed leaves out the findings that an Allow covers.
func unallowed(list []Finding, cfg config) []Finding {
	return slices.DeleteFunc(list, func(f Finding) bool { return allowed(f, cfg.allow) != nil })
}

func joinNotes(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}
