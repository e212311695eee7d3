package shard

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/report"
)

func TestParse(t *testing.T) {
	i, n, err := Parse("2/5")
	require.NoError(t, err)
	assert.Equal(t, [2]int{2, 5}, [2]int{i, n})
	for _, bad := range []string{"", "1", "0/2", "3/2", "a/b", "1/0", "1/2/3", "-1/2"} {
		_, _, err := Parse(bad)
		require.ErrorContains(t, err, "is no shard", bad)
	}
}

// Whatever is known of the times, every test is in exactly one shard, and each machine computes the
// same plan.
func TestNoTestIsLostOrTwice(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		var packages []string
		times := Times{}
		tests := map[string][]string{}
		for p := range 1 + r.IntN(20) {
			name := fmt.Sprintf("example.com/p%d", p)
			packages = append(packages, name)
			if r.IntN(3) > 0 {
				times[Unit{Package: name}] = time.Duration(r.IntN(1e9))
			}
			for i := range r.IntN(30) {
				tests[name] = append(tests[name], fmt.Sprintf("Test%d", i))
				if r.IntN(2) > 0 {
					times[Unit{name, tests[name][i], 0}] = time.Duration(r.IntN(1e8))
				}
			}
		}
		list := func(p string) ([]string, error) { return tests[p], nil }
		n := 1 + r.IntN(12)
		shards, err := Split(packages, times, n, list)
		require.NoError(t, err)
		require.Len(t, shards, n)
		seen := map[string]int{}
		for _, s := range shards {
			for _, u := range s {
				if u.Test == "" {
					seen[u.Package]++
					continue
				}
				seen[u.Package+"."+u.Test]++
			}
		}
		for _, p := range packages {
			if seen[p] == 1 {
				continue
			}
			require.Zero(t, seen[p], "round %d", round)
			for _, test := range tests[p] {
				require.Equal(t, 1, seen[p+"."+test], "round %d: %s.%s", round, p, test)
			}
		}
		r.Shuffle(len(packages), func(i, j int) { packages[i], packages[j] = packages[j], packages[i] })
		again, err := Split(packages, times, n, list)
		require.NoError(t, err)
		require.Equal(t, Digest(shards), Digest(again), "the order of the packages does not matter")
	}
}

func TestLongPackagesAreSplit(t *testing.T) {
	times := Times{{Package: "long"}: 10 * time.Second, {Package: "a"}: time.Second, {Package: "b"}: time.Second}
	list := func(string) ([]string, error) { return []string{"TestA", "TestB", "TestC"}, nil }
	shards, err := Split([]string{"a", "b", "long"}, times, 3, list)
	require.NoError(t, err)
	var most time.Duration
	for _, s := range shards {
		var sum time.Duration
		for _, u := range s {
			sum += u.Took
		}
		most = max(most, sum)
	}
	assert.Less(t, most, 6*time.Second)
	_, err = Split([]string{"a", "long"}, times, 2, func(string) ([]string, error) {
		return nil, errors.New("does not build")
	})
	require.ErrorContains(t, err, "does not build")
}

func TestReadTakesTheNewest(t *testing.T) {
	at := func(hour int, took time.Duration) *report.Report {
		return &report.Report{
			Started:  time.Date(2026, 1, 1, hour, 0, 0, 0, time.UTC),
			Packages: []report.Package{{Name: "p", Elapsed: took}},
			Tests: []report.Test{
				{Package: "p", Name: "TestA", Elapsed: took},
				{Package: "p", Name: "TestA/sub", Elapsed: took},
			},
		}
	}
	times := Read([]*report.Report{at(2, 5), at(1, 9)})
	assert.Equal(t, Times{{Package: "p"}: 5, {Package: "p", Test: "TestA"}: 5}, times)
}
