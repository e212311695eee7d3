package leakcheck

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
)

// Arm is one side of a control experiment. It runs one life: makes what is compared, uses it, shuts
// it down, and calls stage in between, with the name of what was reached ("created", "used"); after
// it has returned, "end" is measured.
type Arm func(round int, stage func(name string))

// Comparison is what Compare measured.
type Comparison struct {
	Rounds int
	Rows   []Difference // stages in their order, the end last; for each of them every measure that differs
}

// Difference is how much more one arm holds than the other at one stage, each against what there
// was before its life.
type Difference struct {
	Stage, Measure string
	With, Without  float64 // medians over the rounds
	More           float64 // the median of the differences of each round
	Confidence     float64 // that With is more: 1 − p of the permutation test of the rounds' differences, one-sided
	Allowed        float64
	bytes          bool
}

// Certain reports whether the difference is more than is allowed, with a confidence of 99.9 %.
func (d Difference) Certain() bool { return d.More > d.Allowed && d.Confidence >= compareConfidence }

const (
	compareConfidence = 0.999
	// fewestPairs is how many rounds it takes for that: all differences are positive by chance once
	// in 2^10.
	fewestPairs = 10
	endStage    = "end"
)

// Compare is a control experiment: it runs both arms in every round, in turns which goes first, and
// fails the test when what is left at the end is certainly more with than without. A leak that only
// one feature causes (a connector, a cache, an option) is so told from what the engine keeps
// anyway. It takes ten rounds or more. Stages before the end are shown and not judged.
// [GrowthAllowed] and [DeviceMemory] work as in [Growth].
func Compare(t TB, rounds int, with, without Arm, opts ...Option) {
	t.Helper()
	c, err := MeasureDifference(context.Background(), rounds, with, without, opts...)
	if err != nil {
		t.Errorf("%v", err)
	} else {
		t.Logf("leakcheck: nothing more is left with than without:\n%s", c)
	}
}

// MeasureDifference is the core of [Compare]: it returns the measurements, and a [*Error] when more
// is left with than without.
func MeasureDifference(ctx context.Context, rounds int, with, without Arm, opts ...Option) (*Comparison, error) {
	cfg := configure(opts)
	if rounds < fewestPairs {
		return nil, fmt.Errorf("leakcheck: a comparison over %d rounds: at least %d are needed for a confidence of 99.9 %%", rounds, fewestPairs)
	}
	defer keepGOMAXPROCS()()
	var table differences
	for i := range rounds + 1 { // the first warms up
		arms := []Arm{with, without}
		lives := make([][]staged, 2)
		for _, k := range []int{i % 2, 1 - i%2} {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			lives[k] = runLife(cfg, i, arms[k])
		}
		if i > 0 {
			table.add(lives[0], lives[1])
		}
	}
	c := &Comparison{Rounds: rounds, Rows: table.rows(cfg)}
	var fs []Finding
	for _, d := range c.Rows {
		if d.Stage == endStage && d.Certain() {
			f := Finding{
				Kind: KindMemory, Name: d.Measure, Signature: "memory: difference of " + d.Measure,
				Detail: c.String(),
			}
			f.Text = fmt.Sprintf("%s: %s more is left with than without (%d rounds in turns; confidence %.2f %%; allowed %s)",
				d.Measure, d.amount(d.More), rounds, 100*d.Confidence, d.amount(d.Allowed))
			fs = append(fs, f)
		}
	}
	return c, newError(fs, cfg.allow)
}

// staged is what was held at one stage, against what was there before the life.
type staged struct {
	stage string
	more  []float64 // one per measure
}

// runLife runs one life of an arm.
func runLife(cfg config, round int, arm Arm) (out []staged) {
	before := sample(cfg)
	stage := func(name string) {
		now := sample(cfg)
		s := staged{stage: name}
		for _, m := range measures {
			s.more = append(s.more, float64(m.of(now)-m.of(before)))
		}
		out = append(out, s)
	}
	arm(round, stage)
	stage(endStage)
	return out
}

// differences collects the lives of all rounds.
type differences struct {
	stages        []string
	with, without map[string][][]float64 // stage → rounds → measures
}

func (t *differences) add(with, without []staged) {
	if t.with == nil {
		t.with, t.without = map[string][][]float64{}, map[string][][]float64{}
	}
	for _, s := range with {
		i := slices.IndexFunc(without, func(o staged) bool { return o.stage == s.stage })
		if i < 0 {
			continue // only one of them has it
		}
		if !slices.Contains(t.stages, s.stage) {
			t.stages = append(t.stages, s.stage)
		}
		t.with[s.stage] = append(t.with[s.stage], s.more)
		t.without[s.stage] = append(t.without[s.stage], without[i].more)
	}
}

func (t *differences) rows(cfg config) (rows []Difference) {
	slices.SortStableFunc(t.stages, func(a, b string) int { return cmp.Compare(rankStage(a), rankStage(b)) })
	for _, stage := range t.stages {
		for k, m := range measures {
			if instrumented && m.name == offHeapMeasure {
				continue // the race detector's own memory grows
			}
			d := Difference{Stage: stage, Measure: m.name, Allowed: m.allowed, bytes: m.bytes}
			if cfg.growth != nil && (m.name == heapMeasure || m.name == offHeapMeasure &&
				float64(*cfg.growth) > m.allowed) {
				d.Allowed = float64(*cfg.growth)
			}
			var a, b, pairs []float64
			for i := range t.with[stage] {
				x, y := t.with[stage][i][k], t.without[stage][i][k]
				a, b, pairs = append(a, x), append(b, y), append(pairs, x-y)
			}
			d.With, d.Without, d.More, d.Confidence = median(a), median(b), median(pairs), pairedConfidence(pairs)
			if d.With != 0 || d.Without != 0 {
				rows = append(rows, d)
			}
		}
	}
	return rows
}

// rankStage puts the end last.
func rankStage(stage string) int {
	if stage == endStage {
		return 1
	}
	return 0
}

func median(x []float64) float64 {
	s := slices.Sorted(slices.Values(x))
	n := len(s)
	if n == 0 {
		return 0
	}
	return (s[(n-1)/2] + s[n/2]) / 2
}

// pairedConfidence is 1 − p of Wilcoxon's signed-rank test, one-sided and exact: p is the share of
// all ways to choose the signs of the differences that have a sum of positive ranks as large as was
// seen (Wilcoxon 1945). Pairs without a difference count as negative.
func pairedConfidence(d []float64) float64 {
	order := make([]int, len(d))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		// of equal ones the positive rank lower
		return cmp.Or(cmp.Compare(math.Abs(d[a]), math.Abs(d[b])), cmp.Compare(d[b], d[a]))
	})
	seen := 0
	for rank, i := range order {
		if d[i] > 0 {
			seen += rank + 1
		}
	}
	n := len(d)
	// ways[s]: the share of the choices of signs with s as the sum of positive ranks
	ways := make([]float64, n*(n+1)/2+1)
	ways[0] = 1
	for rank := 1; rank <= n; rank++ {
		for s := len(ways) - 1; s >= 0; s-- {
			ways[s] /= 2
			if s >= rank {
				ways[s] += ways[s-rank] / 2
			}
		}
	}
	p := 0.0
	for s := seen; s < len(ways); s++ {
		p += ways[s]
	}
	return max(0, 1-p)
}

func (d Difference) amount(x float64) string { return Trend{bytes: d.bytes}.amount(x) }

// String formats the table: one line per stage and measure.
func (c *Comparison) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "stage\tmeasure\twith\twithout\tdifference\tconfidence\t")
	for _, d := range c.Rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%.2f %%\t\n", d.Stage, d.Measure, d.amount(d.With), d.amount(d.Without),
			d.amount(d.More), 100*d.Confidence)
	}
	w.Flush()
	return b.String()
}
