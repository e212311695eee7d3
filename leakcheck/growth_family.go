package leakcheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/enginetest/enginetest/ledger"
)

// FamilyReport is what GrowthOf measured.
type FamilyReport struct {
	Warmup  int // rounds before the first sample
	Samples []FamilySample
	Trends  []Trend // one per measure, those that grew too much first
	Places  []PlaceGrowth
}

// PlaceGrowth is how much more memory a process has in one place for every round.
type PlaceGrowth struct {
	Process string // "pid 4194 (llama-server --port 8080)"
	Place   string // "the C library's heap", "anonymous memory", a mapped file
	Bytes   float64
}

// familyMeasures are what is read after every round, with the growth of a round that is no finding.
var familyMeasures = []struct {
	name    string
	allowed float64
	bytes   bool
	of      func(FamilySample) int64
}{
	{"anonymous memory of the family", 64 << 10, true, func(s FamilySample) int64 { return s.Anonymous }},
	{"shared memory of the family", 64 << 10, true, func(s FamilySample) int64 { return s.Shared }},
	{"device memory", 0, true, func(s FamilySample) int64 { return s.Device }},
	{"file descriptors of the family", 0.2, false, func(s FamilySample) int64 { return s.Descriptors }},
	{"processes of the family", 0.2, false, func(s FamilySample) int64 { return s.Processes }},
}

// GrowthOf runs a function this many rounds and fails the test when the processes of a family hold
// more with every round: anonymous memory, shared memory, device memory (option [DeviceMemory]),
// descriptors, processes. [GrowthAllowed] sets the bytes of memory that a round may leave (default
// 64 KiB). Growth of memory is attributed to processes and to the places in them. Mapped files are
// shown, and not judged.
func GrowthOf(t TB, family Family, rounds int, round func(i int), opts ...Option) {
	t.Helper()
	rep, err := MeasureGrowthOf(context.Background(), family, rounds, round, opts...)
	if err != nil {
		t.Errorf("%v", err)
	} else {
		t.Logf("leakcheck: nothing of the family grows:\n%s", rep.Table())
	}
}

// MeasureGrowthOf is the core of [GrowthOf]: it returns the measurements, and a [*Error] when
// something grows. A cancelled context ends the rounds early.
func MeasureGrowthOf(ctx context.Context, family Family, rounds int, round func(i int),
	opts ...Option,
) (*FamilyReport, error) {
	cfg := configure(opts)
	rep := &FamilyReport{Warmup: cfg.warmup}
	if rep.Warmup == 0 {
		rep.Warmup = max(1, rounds/4)
	}
	if rounds-rep.Warmup < 4 {
		return nil, fmt.Errorf("leakcheck: growth over %d rounds, of which %d are warm-up: at least four must be left to tell a trend from noise", rounds, rep.Warmup)
	}
	defer keepGOMAXPROCS()()
	var before map[place]int64
	var unreadable string
	for i := range rounds {
		if ctx.Err() != nil {
			return rep, ctx.Err()
		}
		round(i)
		if i+1 < rep.Warmup {
			continue
		}
		if family.instrumented() {
			return nil, errors.New("leakcheck: growth of a family with a program under the race detector cannot be judged: the detector's own memory grows")
		}
		s, hidden, err := family.sample(cfg)
		if err != nil {
			return rep, err
		}
		rep.Samples = append(rep.Samples, s)
		unreadable = cmp.Or(unreadable, hidden)
		if i+1 == rep.Warmup {
			before = family.places()
		}
	}
	rep.judge(cfg, unreadable)
	if !rep.Trends[0].Grows() {
		return rep, nil
	}
	rep.attribute(before, family.places(), float64(rounds-rep.Warmup))
	var fs []Finding
	for _, t := range rep.Trends {
		if t.Grows() {
			fs = append(fs, rep.finding(t, rounds))
		}
	}
	return rep, newError(fs, cfg.allow)
}

// judge makes the trends; those that grow come first.
func (r *FamilyReport) judge(cfg config, unreadable string) {
	for _, m := range familyMeasures {
		y := make([]float64, len(r.Samples))
		for i, s := range r.Samples {
			y[i] = float64(m.of(s))
		}
		if cfg.growth != nil && m.bytes && m.allowed > 0 {
			m.allowed = float64(*cfg.growth)
		}
		t := newTrend(m.name, y, m.allowed)
		t.bytes = m.bytes
		if unreadable != "" && strings.HasPrefix(m.name, "file descriptors") {
			t.Unjudged = "the descriptors of " + unreadable + " cannot be listed"
		}
		r.Trends = append(r.Trends, t)
	}
	slices.SortStableFunc(r.Trends, growingFirst)
}

func growingFirst(a, b Trend) int {
	rank := map[bool]int{true: 0, false: 1}
	return rank[a.Grows()] - rank[b.Grows()]
}

// attribute lists the places that grew most.
func (r *FamilyReport) attribute(before, after map[place]int64, rounds float64) {
	for _, at := range slices.SortedFunc(maps.Keys(after), func(a, b place) int {
		return cmp.Or(cmp.Compare(a.pid, b.pid), cmp.Compare(a.name, b.name))
	}) {
		if more := float64(after[at]-before[at]) / rounds; more > 0 {
			r.Places = append(r.Places, PlaceGrowth{at.String(), at.name, more})
		}
	}
	slices.SortStableFunc(r.Places, func(a, b PlaceGrowth) int { return cmp.Compare(b.Bytes, a.Bytes) })
	if len(r.Places) == 0 {
		return
	}
	least := r.Places[0].Bytes / 20
	r.Places = r.Places[:min(len(r.Places), 8)]
	r.Places = slices.DeleteFunc(r.Places, func(p PlaceGrowth) bool { return p.Bytes < least })
}

func (r *FamilyReport) finding(t Trend, rounds int) Finding {
	f := Finding{Kind: KindMemory, Name: t.Measure, Signature: "memory: growth of " + t.Measure}
	f.Text = fmt.Sprintf("%s: %s more with every round (%d rounds, %d of them warm-up; confidence %.2f %%; allowed %s)",
		t.Measure, t.amount(t.PerRound), rounds, r.Warmup, 100*t.Confidence, t.amount(t.Allowed))
	var b strings.Builder
	b.WriteString(r.Table())
	if t.bytes && t.Measure != "device memory" {
		for _, p := range r.Places {
			fmt.Fprintf(&b, "+%s a round in %s: %s\n", ledger.FormatBytes(int64(p.Bytes)), p.Process, p.Place)
		}
	}
	f.Detail = b.String()
	if t.Slowing {
		f.Note = "the growth is slowing down: if a cache is filling up, raise leakcheck.Warmup"
	}
	return f
}

// amount formats a value of the measure.
func (t Trend) amount(x float64) string {
	if t.bytes {
		return ledger.FormatBytes(int64(x))
	}
	return fmt.Sprintf("%.1f", x)
}

// Table formats the samples, one line per round.
func (r *FamilyReport) Table() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "round\tcore RSS\ttotal RSS\tanonymous\tshared\tfiles\tdevice\tfds\tprocesses\t")
	size := ledger.FormatBytes
	for i, s := range r.Samples {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t\n", r.Warmup+i, size(s.Core), size(s.Resident),
			size(s.Anonymous), size(s.Shared), size(s.Files), size(s.Device), s.Descriptors, s.Processes)
	}
	w.Flush()
	for _, t := range r.Trends {
		if t.Unjudged != "" {
			fmt.Fprintf(&b, "%s: not judged: %s\n", t.Measure, t.Unjudged)
		}
	}
	return b.String()
}
