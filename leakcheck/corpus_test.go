package leakcheck_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/enginetest/enginetest/leakcheck"
	"github.com/enginetest/enginetest/leakcheck/testdata/corpus"
	"github.com/stretchr/testify/assert"
)

var rounds = flag.Int("rounds", 3, "how often every clean look-alike and every clean twin runs in TestCorpus")

// plant runs f and returns what it tracked. Nothing of it stays on the caller's stack.
//
//go:noinline
func plant[T any](f func(track func(any)) T, patience time.Duration) (refs []*leakcheck.Ref, undo T) {
	undo = f(func(v any) {
		refs = append(refs, leakcheck.Track("it", v, leakcheck.Patience(patience)))
	})
	return refs, undo
}

// verdict is one row of the confusion matrix.
type verdict struct {
	planted, found, named, clean, alarms int
	took                                 []time.Duration // of each check that found something, with its explanation
}

// median is the middle of the times.
func (v *verdict) median() time.Duration {
	if len(v.took) == 0 {
		return 0
	}
	slices.Sort(v.took)
	return v.took[len(v.took)/2].Round(100 * time.Microsecond)
}

// TestCorpus plants every leak and every look-alike, and prints the confusion matrix:
//
//	go test ./leakcheck -run Corpus -v
func TestCorpus(t *testing.T) {
	ctx := context.Background()
	matrix := map[string]*verdict{}
	var kinds []string
	row := func(kind string) *verdict {
		if matrix[kind] == nil {
			matrix[kind] = &verdict{}
			kinds = append(kinds, kind)
		}
		return matrix[kind]
	}
	for _, c := range corpus.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			v := row(c.Kind)
			refs, undo := plant(c.Plant, 0)
			start := time.Now()
			err := leakcheck.Released(ctx, refs...)
			v.took = append(v.took, time.Since(start))
			v.planted++
			if le, ok := errors.AsType[*leakcheck.Error](err); !ok {
				t.Errorf("not found: %v", err)
			} else {
				v.found++
				if misses := missing(c, le.Findings[0]); len(misses) > 0 {
					t.Errorf("the culprit is not named: no %s in\n%v", strings.Join(misses, ", no "), err)
				} else {
					v.named++
				}
				t.Log(err)
			}
			undo()
			v.clean++
			if err := twin(refs); err != nil {
				v.alarms++
				t.Errorf("still there after undo: %v", err)
			}
		})
	}
	for range *rounds {
		for _, c := range corpus.Cleans() {
			v := row("look-alikes")
			v.clean++
			refs, _ := plant(func(track func(any)) bool { c.Run(track); return true }, time.Second)
			if err := leakcheck.Released(ctx, refs...); err != nil {
				v.alarms++
				t.Errorf("false alarm for %q: %v", c.Name, err)
			}
		}
	}
	for range *rounds - 1 {
		for _, c := range corpus.Cases() {
			v := row(c.Kind)
			v.clean++
			refs, undo := plant(c.Plant, time.Second)
			undo()
			if err := leakcheck.Released(ctx, refs...); err != nil {
				v.alarms++
				t.Errorf("false alarm for the clean twin of %q: %v", c.Name, err)
			}
		}
	}
	var sum verdict
	var b strings.Builder
	fmt.Fprintf(&b, "\n%-18s %8s %8s %14s %9s %11s %13s\n", "kind", "planted", "found", "culprit named", "median",
		"clean runs", "false alarms")
	for _, k := range kinds {
		v := matrix[k]
		v.print(&b, k)
		sum = verdict{
			sum.planted + v.planted, sum.found + v.found, sum.named + v.named, sum.clean + v.clean, sum.alarms +
				v.alarms, append(sum.took, v.took...),
		}
	}
	sum.print(&b, "all")
	t.Log(b.String())
	assert.GreaterOrEqual(t, sum.planted, 40)
	assert.GreaterOrEqual(t, len(corpus.Cleans()), 40)
	assert.Equal(t, sum.planted, sum.found, "recall")
	assert.GreaterOrEqual(t, float64(sum.named), 0.95*float64(sum.planted), "culprits named")
	assert.Zero(t, sum.alarms, "false alarms")
}

func (v *verdict) print(b *strings.Builder, kind string) {
	fmt.Fprintf(b, "%-18s %8d %8d %14d %9s %11d %13d\n", kind, v.planted, v.found, v.named, v.median(), v.clean,
		v.alarms)
}

// twin checks refs again, with patience: what was undone may still be on its way out.
func twin(refs []*leakcheck.Ref) error {
	for i := 0; ; i++ {
		err := leakcheck.Released(context.Background(), refs...)
		if err == nil || i == 3 {
			return err
		}
	}
}

// missing lists what the report should say and does not.
func missing(c corpus.Case, f leakcheck.Finding) (out []string) {
	if len(f.Path) == 0 {
		return []string{"path"}
	}
	first, _, _ := strings.Cut(f.Detail, "\n")
	for _, want := range [][3]string{{"root", first, c.Root}, {"holder", f.Detail, c.Via}, {"hint", f.Note, c.Hint}} {
		if !strings.Contains(want[1], want[2]) {
			out = append(out, fmt.Sprintf("%s %q", want[0], want[2]))
		}
	}
	return out
}
