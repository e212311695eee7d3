package leakcheck

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/enginetest/enginetest/leakcheck/internal/retain"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/verdict"
)

// GrowthReport is what Growth measured.
type GrowthReport struct {
	Warmup  int // rounds before the first sample
	Rounds  int // with the second series, if something seemed to grow in the first
	Samples []Sample
	Trends  []Trend // one a measure, those that grew too much first
	Sites   []SiteGrowth
	Paths   []Finding // what keeps objects of the growing sites
}

// SiteGrowth is how many more bytes and objects of one allocation site are alive for every round.
type SiteGrowth struct {
	Site           string
	Bytes, Objects float64
	key            string // file:line
}

// GrowthAllowed sets how many bytes a round may leave behind in the Go heap (default 4 KiB), and
// outside of it when it is more than the 1 MiB that is allowed there: C libraries keep what is
// freed. Device memory, goroutines and descriptors may not grow at all.
func GrowthAllowed(bytes int64) Option { return func(c *config) { c.growth = &bytes } }

// Warmup sets how many rounds run before the first sample (default: a quarter of the rounds, at
// least one): caches fill, pools grow.
func Warmup(rounds int) Option { return func(c *config) { c.warmup = rounds } }

// growthRate is the sampling of the heap profile while rounds run: one sample in this many bytes.
const growthRate = 4 << 10

// Growth runs a function this many rounds and fails the test when something grows with every round:
// the Go heap, memory outside of it, device memory (option [DeviceMemory]), goroutines, file
// descriptors. What seems to grow must grow again in a second series of as many rounds, which count
// on: i stays below twice the rounds. Growth of the heap is attributed to allocation sites and
// types, with the path that keeps their objects. The table and a plot go to t.ArtifactDir().
func Growth(t TB, rounds int, round func(i int), opts ...Option) {
	t.Helper()
	rep, err := MeasureGrowth(context.Background(), rounds, round, opts...)
	if err != nil {
		verdict.Record(t, verdict.Of(err)...)
		t.Errorf("%v", err)
	}
	if cfg := configure(opts); rep != nil && cfg.growth != nil {
		verdict.Measure(t, rep.bounds()...)
	}
	if a, ok := t.(interface{ ArtifactDir() string }); ok && rep != nil {
		dir := a.ArtifactDir()
		for name, text := range map[string]string{"growth.txt": rep.Table(), "growth.svg": rep.svg()} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Logf("leakcheck: %v", err)
			}
		}
	}
}

// bounds returns what GrowthAllowed allows beside what was measured: audit finds one that allows far
// more.
func (r *GrowthReport) bounds() (list []verdict.Bound) {
	for _, tr := range r.Trends {
		if tr.Measure == heapMeasure && tr.Unjudged == "" {
			list = append(list, verdict.Bound{
				Name: "growth of the Go heap in each round", Value: max(0, tr.PerRound), Max: tr.Allowed, Unit: "bytes",
			})
		}
	}
	return list
}

// MeasureGrowth is Growth's core: it returns the measurements, and a [*Error] when something grows.
// A cancelled context ends the rounds early.
func MeasureGrowth(ctx context.Context, rounds int, round func(i int), opts ...Option) (*GrowthReport, error) {
	cfg := configure(opts)
	rep := &GrowthReport{Warmup: cfg.warmup}
	if rep.Warmup == 0 {
		rep.Warmup = max(1, rounds/4)
	}
	if rounds-rep.Warmup < 4 {
		return nil, fmt.Errorf("leakcheck: growth over %d rounds, of which %d are warm-up: at least four must be left to tell a trend from noise", rounds, rep.Warmup)
	}
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	runtime.MemProfileRate = min(growthRate, runtime.MemProfileRate)
	if runtime.MemProfileRate == 0 {
		runtime.MemProfileRate = growthRate
	}
	defer keepGOMAXPROCS()()
	before, err := rep.measure(ctx, cfg, rounds, round)
	if err != nil {
		return rep, err
	}
	if rep.trends(cfg, rep.Samples); !rep.Trends[0].Grows() {
		return rep, nil
	}
	if err := rep.confirm(ctx, cfg, round); err != nil {
		return rep, err
	}
	if !rep.Trends[0].Grows() {
		return rep, nil
	}
	if slices.ContainsFunc(rep.Trends, func(t Trend) bool { return t.Measure == heapMeasure && t.Grows() }) {
		rep.attribute(before, liveSites(), float64(rep.Rounds-rep.Warmup))
	}
	var fs []Finding
	for _, tr := range rep.Trends {
		if tr.Grows() {
			fs = append(fs, rep.finding(tr, cfg, before))
		}
	}
	runtime.KeepAlive(round) // what the rounds keep hangs on it
	return rep, newError(fs, cfg.allow)
}

// measure runs the first series.
func (r *GrowthReport) measure(ctx context.Context, cfg config, rounds int, round func(i int)) (before baseline, err error) {
	r.Samples = make([]Sample, 0, 2*rounds)
	for ; r.Rounds < rounds; r.Rounds++ {
		if ctx.Err() != nil {
			return before, ctx.Err()
		}
		round(r.Rounds)
		if r.Rounds+1 < r.Warmup {
			continue
		}
		if r.Rounds+1 == r.Warmup { // before the first sample, which shows what it takes itself
			settle()
			before = takeBaseline(cfg)
		}
		r.Samples = append(r.Samples, sample(cfg))
	}
	return before, nil
}

// confirm runs a second series, and withdraws the suspicion of what does not grow in it. Where a
// sample depends on the ones before (a ring of buffers of random sizes), one series wanders up by
// chance far more often than its confidence says; two in a row hardly ever do.
func (r *GrowthReport) confirm(ctx context.Context, cfg config, round func(i int)) error {
	end := len(r.Samples) - 1
	for range end {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		round(r.Rounds)
		r.Rounds++
		r.Samples = append(r.Samples, sample(cfg))
	}
	again := GrowthReport{}
	again.trends(cfg, r.Samples[end:])
	for k := range r.Trends {
		t := &r.Trends[k]
		same := slices.IndexFunc(again.Trends, func(s Trend) bool { return s.Measure == t.Measure })
		t.once = t.Grows() && !again.Trends[same].grows(confirming)
	}
	slices.SortStableFunc(r.Trends, growingFirst)
	return nil
}

// trends judges every measure; those that grow come first.
func (r *GrowthReport) trends(cfg config, samples []Sample) {
	series := func(of func(Sample) int64) []float64 {
		y := make([]float64, len(samples))
		for i, s := range samples {
			y[i] = float64(of(s))
		}
		return y
	}
	for _, m := range measures {
		y, allowed := series(m.of), m.allowed
		if cfg.growth != nil && (m.name == heapMeasure || *cfg.growth > int64(allowed) && m.name == offHeapMeasure) {
			allowed = float64(*cfg.growth)
		}
		t := newTrend(m.name, y, allowed)
		t.bytes = m.bytes
		switch m.name {
		case heapMeasure:
			objects := series(func(s Sample) int64 { return s.Objects })
			flat := slope(objects)+2*slopeError(objects) < 0.8
			t.doubt = flat && !oneGrows(y)
		case offHeapMeasure:
			if instrumented {
				t.Unjudged = "the race detector (or a sanitizer) keeps books outside the Go heap on all memory that is touched, and these grow"
			}
		}
		r.Trends = append(r.Trends, t)
	}
	slices.SortStableFunc(r.Trends, growingFirst)
}

// baseline is what was alive after the warm-up.
type baseline struct {
	sites      map[string]SiteGrowth
	goroutines map[string]int
	objects    map[uint64]bool // addresses of sampled ones
	host       *HostState      // nil where there is none
	owners     map[string]int64
}

func takeBaseline(cfg config) baseline {
	objects, err := retain.Sampled()
	if err != nil {
		objects = nil // then paths may be shown of objects that were there before
	}
	host, err := Snapshot()
	if err != nil {
		host = nil
	}
	return baseline{liveSites(), goroutineSites(), objects, host, cfg.owners()}
}

// liveSites adds up the live objects of every allocation site, scaled up from the samples.
func liveSites() map[string]SiteGrowth {
	records := make([]runtime.MemProfileRecord, 1000)
	for {
		n, ok := runtime.MemProfile(records, false)
		if ok {
			records = records[:n]
			break
		}
		records = make([]runtime.MemProfileRecord, n+n/4+50)
	}
	out := map[string]SiteGrowth{}
	for i := range records {
		r := &records[i]
		objects, bytes := float64(r.InUseObjects()), float64(r.InUseBytes())
		if objects == 0 {
			continue
		}
		// an object of this size is sampled with probability 1 − e^(−size/rate)
		scale := 1 / (1 - math.Exp(-bytes/objects/float64(runtime.MemProfileRate)))
		site, key := userSite(r.Stack())
		s := out[key]
		out[key] = SiteGrowth{site, s.Bytes + bytes*scale, s.Objects + objects*scale, key}
	}
	return out
}

// userSite names the innermost frame outside the runtime.
func userSite(stack []uintptr) (site, key string) {
	frames := runtime.CallersFrames(stack)
	for {
		f, more := frames.Next()
		if !strings.HasPrefix(f.Function, "runtime.") && !strings.HasPrefix(f.Function, "internal/") || !more {
			return fmt.Sprintf("%s %s:%d", f.Function, shortPath(f.File), f.Line), fmt.Sprintf("%s:%d", f.File, f.Line)
		}
	}
}

// goroutineSites counts goroutines by where they stand.
func goroutineSites() map[string]int {
	out := map[string]int{}
	for _, g := range stacks() {
		out[goroutineSite(g)]++
	}
	return out
}

func goroutineSite(g goroutine) string {
	top := frame{fn: "?"}
	if len(g.frames) > 0 {
		top = g.frames[0]
	}
	return fmt.Sprintf("[%s] in %s, created by %s", g.state, top, g.creator)
}

// ownSite are the places of this package, whose own tables live while it measures.
var ownSite = regexp.MustCompile(`/enginetest/leakcheck(/internal/\w+)?\.`)

// attribute finds the sites that grew, and what keeps a few objects of the first of them.
func (r *GrowthReport) attribute(before baseline, after map[string]SiteGrowth, rounds float64) {
	for key, s := range after {
		b := before.sites[key]
		s.Bytes, s.Objects = (s.Bytes-b.Bytes)/rounds, (s.Objects-b.Objects)/rounds
		if s.Bytes > 128 && !ownSite.MatchString(s.Site) {
			r.Sites = append(r.Sites, s)
		}
	}
	slices.SortFunc(r.Sites, func(a, b SiteGrowth) int { return int(b.Bytes - a.Bytes) })
	r.Sites = slices.DeleteFunc(r.Sites[:min(len(r.Sites), 5)], func(s SiteGrowth) bool {
		return s.Bytes < r.Sites[0].Bytes/20
	})
	keys := make([]string, 0, 2)
	for _, s := range r.Sites[:min(len(r.Sites), 2)] {
		keys = append(keys, s.key)
	}
	r.Paths = explainSites(keys, before.objects)
}

// finding puts a trend into words.
func (r *GrowthReport) finding(t Trend, cfg config, before baseline) Finding {
	f := Finding{Kind: KindMemory, Name: t.Measure, Signature: "memory: growth of " + t.Measure}
	f.Text = fmt.Sprintf("%s: %s more with every round (%d rounds, %d of them warm-up; confidence %.2f %%; allowed %s)",
		t.Measure, t.amount(t.PerRound), r.Rounds, r.Warmup, 100*t.Confidence, t.amount(t.Allowed))
	var b strings.Builder
	b.WriteString(r.table(t.Measure))
	switch t.Measure {
	case heapMeasure:
		for _, s := range r.Sites {
			fmt.Fprintf(&b, "+%s a round (%.1f objects) allocated by %s\n", ledger.FormatBytes(int64(s.Bytes)),
				s.Objects, s.Site)
		}
		for _, p := range r.Paths {
			fmt.Fprintf(&b, "%s\n%s", p.Text, p.Detail)
			f.Signature += "; " + strings.TrimSuffix(p.Signature, " → *")
			f.Note = p.Note
		}
	case offHeapMeasure:
		if os.Getenv("MALLOC_ARENA_MAX") == "" {
			b.WriteString("memory that C code has freed stays with the C library, by chance in many places: does it grow with MALLOC_ARENA_MAX=1 in the environment, too?\n")
		}
	case "device memory":
		for owner, bytes := range cfg.owners() {
			if more := bytes - before.owners[owner]; more > 0 {
				fmt.Fprintf(&b, "+%s of owner %s\n", ledger.FormatBytes(more), owner)
			}
		}
	case "goroutines":
		for site, n := range goroutineSites() {
			if more := n - before.goroutines[site]; more > 1 {
				fmt.Fprintf(&b, "+%d goroutines %s\n", more, site)
			}
		}
	case "file descriptors":
		for what, n := range newDescriptors(before.host) {
			fmt.Fprintf(&b, "+%d %s\n", n, what)
		}
	}
	f.Detail = b.String()
	if t.Slowing {
		f.Note = strings.TrimSpace("the growth is slowing down: if a cache is filling up, raise leakcheck.Warmup. " +
			f.Note)
	}
	return f
}
