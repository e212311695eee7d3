// Package shard splits tests over machines by the time that they took before.
package shard

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/enginetest/enginetest/report"
)

// Unit is what one machine runs: a package, or one test of a package that is too long for one
// machine.
type Unit struct {
	Package string
	Test    string // "" for all of it
	Took    time.Duration
}

// Parse reads "2/5".
func Parse(s string) (index, of int, err error) {
	a, b, ok := strings.Cut(s, "/")
	index, errA := strconv.Atoi(a)
	of, errB := strconv.Atoi(b)
	if !ok || errA != nil || errB != nil || of < 1 || index < 1 || index > of {
		return 0, 0, fmt.Errorf("%q is no shard: i/n with 1 ≤ i ≤ n, such as 2/5", s)
	}
	return index, of, nil
}

// Times holds how long packages and their top-level tests took, by the newest report that has them.
type Times map[Unit]time.Duration

// Read collects the times of reports.
func Read(history []*report.Report) Times {
	sorted := slices.SortedFunc(slices.Values(history), func(a, b *report.Report) int {
		return a.Started.Compare(b.Started)
	})
	times := Times{}
	for _, r := range sorted {
		sum := map[string]time.Duration{}
		for _, t := range r.Tests {
			if t.Name != "" && !strings.Contains(t.Name, "/") {
				times[Unit{Package: t.Package, Test: t.Name}] = t.Elapsed
				sum[t.Package] += t.Elapsed
			}
		}
		for _, p := range r.Packages {
			if took := max(p.Elapsed, sum[p.Name]); took > 0 && len(r.Shards) == 0 {
				times[Unit{Package: p.Name}] = took
			}
		}
	}
	return times
}

// Split distributes the packages over n machines: the longest first, each to the machine with the
// least work. A package that is longer than one machine's share is split into its tests, which list
// returns. The result depends on its arguments alone, so that every machine computes the same.
func Split(packages []string, times Times, n int, list func(pkg string) ([]string, error)) ([][]Unit, error) {
	packages = slices.Compact(slices.Sorted(slices.Values(packages)))
	typical := median(packages, times)
	var units []Unit
	var total time.Duration
	for _, p := range packages {
		u := Unit{Package: p, Took: cmp.Or(times[Unit{Package: p}], typical)}
		total += u.Took
		units = append(units, u)
	}
	var parts []Unit
	for _, u := range units {
		if n == 1 || u.Took <= total/time.Duration(n) || len(packages) > 1 && times[Unit{Package: u.Package}] == 0 {
			parts = append(parts, u)
			continue
		}
		tests, err := list(u.Package)
		if err != nil {
			return nil, err
		}
		if len(tests) < 2 {
			parts = append(parts, u)
			continue
		}
		each := u.Took / time.Duration(len(tests))
		for _, t := range slices.Sorted(slices.Values(tests)) {
			parts = append(parts, Unit{u.Package, t, cmp.Or(times[Unit{Package: u.Package, Test: t}], each)})
		}
	}
	return distribute(parts, n), nil
}

func distribute(units []Unit, n int) [][]Unit {
	slices.SortStableFunc(units, func(a, b Unit) int { return cmp.Compare(b.Took, a.Took) })
	shards, load := make([][]Unit, n), make([]time.Duration, n)
	for _, u := range units {
		least := 0
		for i := range load {
			if load[i] < load[least] {
				least = i
			}
		}
		shards[least] = append(shards[least], u)
		load[least] += max(u.Took, time.Millisecond)
	}
	return shards
}

func median(packages []string, times Times) time.Duration {
	var known []time.Duration
	for _, p := range packages {
		if t := times[Unit{Package: p}]; t > 0 {
			known = append(known, t)
		}
	}
	if known == nil {
		return time.Second
	}
	slices.Sort(known)
	return known[len(known)/2]
}

// Digest identifies a plan: machines with the same digest run parts of the same whole.
func Digest(shards [][]Unit) string {
	h := sha256.New()
	for i, units := range shards {
		for _, u := range units {
			fmt.Fprintf(h, "%d\x00%s\x00%s\n", i, u.Package, u.Test)
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8])
}
