package leakcheck

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/enginetest/enginetest/leakcheck/internal/retain"
	"github.com/enginetest/enginetest/ledger"
)

// GrowthReport is what Growth measured.
type GrowthReport struct {
	Warmup  int // rounds before the first sample
	Samples []Sample
	Trends  []Trend // one a measure, those that grew too much first
	Sites   []SiteGrowth
	Paths   []Finding // what keeps objects of the growing sites
}

// Sample is the state after one round, all that can be collected collected.
type Sample struct {
	Heap, Objects, OffHeap, Device, Goroutines, Descriptors int64
}

// SiteGrowth is how many more bytes and objects of one allocation site are alive for every round.
type SiteGrowth struct {
	Site           string
	Bytes, Objects float64
	key            string // file:line
}

// GrowthAllowed sets how many bytes a round may leave behind, in the Go heap and outside of it (default 16 KiB and 1 MiB). Device memory,
// goroutines and descriptors may not grow at all.
func GrowthAllowed(bytes int64) Option { return func(c *config) { c.growth = &bytes } }

// Warmup sets how many rounds run before the first sample (default: a quarter of the rounds, at least one): caches fill, pools grow.
func Warmup(rounds int) Option { return func(c *config) { c.warmup = rounds } }

// growthRate is the sampling of the heap profile while rounds run: one sample in so many bytes.
const growthRate = 16 << 10

// Growth runs a function so many rounds and fails the test when something grows with every round: the Go heap, memory outside of it, device
// memory (option [DeviceMemory]), goroutines, file descriptors. Growth of the heap is attributed to allocation sites and types, with the
// path that keeps their objects. The table and a plot go to t.ArtifactDir().
func Growth(t TB, rounds int, round func(i int), opts ...Option) {
	t.Helper()
	rep, err := MeasureGrowth(context.Background(), rounds, round, opts...)
	if err != nil {
		t.Errorf("%v", err)
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

// MeasureGrowth is Growth's core: it gives the measurements, and a [*Error] when something grows. A cancelled context ends the rounds early.
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
	var before baseline
	for i := range rounds {
		if ctx.Err() != nil {
			return rep, ctx.Err()
		}
		round(i)
		if i+1 < rep.Warmup {
			continue
		}
		rep.Samples = append(rep.Samples, sample(cfg))
		if i+1 == rep.Warmup {
			before = takeBaseline()
		}
	}
	rep.trends(cfg)
	if !rep.Trends[0].Grows() {
		return rep, nil
	}
	measured := float64(rounds - rep.Warmup)
	if slices.ContainsFunc(rep.Trends, func(t Trend) bool { return t.Measure == "Go heap" && t.Grows() }) {
		rep.attribute(before, liveSites(), measured)
	}
	var fs []Finding
	for _, tr := range rep.Trends {
		if tr.Grows() {
			fs = append(fs, rep.finding(tr, rounds, cfg, before.goroutines))
		}
	}
	runtime.KeepAlive(round) // what the rounds keep hangs on it
	return rep, newError(fs, cfg.allow)
}

// sample collects twice, gives free memory back to the system, and reads everything.
func sample(cfg config) (s Sample) {
	runtime.GC()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s.Heap, s.Objects, s.Goroutines = int64(m.HeapAlloc), int64(m.HeapObjects), int64(runtime.NumGoroutine())
	s.OffHeap = max(0, residentBytes()-int64(m.Sys-m.HeapReleased)) // too low while Go has memory that it never touched
	s.Descriptors = openDescriptors()
	for _, d := range cfg.memory {
		if rep := d.reporter(); rep != nil {
			for _, h := range rep.Holdings() {
				if len(d.owners) == 0 || slices.Contains(d.owners, h.Owner) {
					s.Device += h.Bytes
				}
			}
		}
	}
	return s
}

// trends judges every measure; those that grow come first.
func (r *GrowthReport) trends(cfg config) {
	heap, offHeap := 16.0*(1<<10), 1.0*(1<<20)
	if cfg.growth != nil {
		heap, offHeap = float64(*cfg.growth), float64(*cfg.growth)
	}
	for _, m := range []struct {
		name    string
		allowed float64
		bytes   bool
		of      func(Sample) int64
	}{
		{"Go heap", heap, true, func(s Sample) int64 { return s.Heap }},
		{"memory outside the Go heap", offHeap, true, func(s Sample) int64 { return s.OffHeap }},
		{"device memory", 0, true, func(s Sample) int64 { return s.Device }},
		{"goroutines", 0.2, false, func(s Sample) int64 { return s.Goroutines }},
		{"file descriptors", 0.2, false, func(s Sample) int64 { return s.Descriptors }},
	} {
		y := make([]float64, len(r.Samples))
		for i, s := range r.Samples {
			y[i] = float64(m.of(s))
		}
		half := len(y) / 2
		first, second := slope(y[:half+1]), slope(y[half:])
		r.Trends = append(r.Trends, Trend{m.name, slope(y), confidence(y), m.allowed, len(y) >= 8 && second < first/2, m.bytes})
	}
	slices.SortStableFunc(r.Trends, func(a, b Trend) int {
		switch {
		case a.Grows() == b.Grows():
			return 0
		case a.Grows():
			return -1
		}
		return 1
	})
}

// baseline is what was alive after the warm-up.
type baseline struct {
	sites      map[string]SiteGrowth
	goroutines map[string]int
	objects    map[uint64]bool // addresses of sampled ones
}

func takeBaseline() baseline {
	objects, err := retain.Sampled()
	if err != nil {
		objects = nil // then paths may be shown of objects that were there before
	}
	return baseline{liveSites(), goroutineSites(), objects}
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

// attribute finds the sites that grew, and what keeps a few objects of the first of them.
func (r *GrowthReport) attribute(before baseline, after map[string]SiteGrowth, rounds float64) {
	for key, s := range after {
		b := before.sites[key]
		s.Bytes, s.Objects = (s.Bytes-b.Bytes)/rounds, (s.Objects-b.Objects)/rounds
		if s.Bytes > 1024 && !strings.Contains(s.Site, "enginetest/leakcheck.") {
			r.Sites = append(r.Sites, s)
		}
	}
	slices.SortFunc(r.Sites, func(a, b SiteGrowth) int { return int(b.Bytes - a.Bytes) })
	r.Sites = slices.DeleteFunc(r.Sites[:min(len(r.Sites), 5)], func(s SiteGrowth) bool { return s.Bytes < r.Sites[0].Bytes/20 })
	keys := make([]string, 0, 2)
	for _, s := range r.Sites[:min(len(r.Sites), 2)] {
		keys = append(keys, s.key)
	}
	r.Paths = explainSites(keys, before.objects)
}

// finding puts a trend into words.
func (r *GrowthReport) finding(t Trend, rounds int, cfg config, stacksBefore map[string]int) Finding {
	f := Finding{Kind: Memory, Name: t.Measure, Signature: "growth of " + t.Measure, accept: "growth of " + t.Measure}
	amount := func(x float64) string {
		if t.bytes {
			return ledger.FormatBytes(int64(x))
		}
		return fmt.Sprintf("%.1f", x)
	}
	f.Text = fmt.Sprintf("%s: %s more with every round (%d rounds, %d of them warm-up; confidence %.1f %%; allowed %s)",
		t.Measure, amount(t.PerRound), rounds, r.Warmup, 100*t.Confidence, amount(t.Allowed))
	var b strings.Builder
	b.WriteString(r.Table())
	switch t.Measure {
	case "Go heap":
		for _, s := range r.Sites {
			fmt.Fprintf(&b, "+%s a round (%.1f objects) allocated by %s\n", ledger.FormatBytes(int64(s.Bytes)), s.Objects, s.Site)
		}
		for _, p := range r.Paths {
			fmt.Fprintf(&b, "%s\n%s", p.Text, p.Detail)
			f.Signature += "; " + p.Signature
			f.accept = p.accept
			f.Note = p.Note
		}
	case "memory outside the Go heap":
		if os.Getenv("MALLOC_ARENA_MAX") == "" {
			b.WriteString("memory that C code has freed stays with the C library, by chance in many places: does it grow with MALLOC_ARENA_MAX=1 in the environment, too?\n")
		}
	case "device memory":
		for _, d := range cfg.memory {
			if rep := d.reporter(); rep != nil {
				b.WriteString(ledger.Format(rep.Holdings()[:min(8, len(rep.Holdings()))]))
			}
		}
	case "goroutines":
		for site, n := range goroutineSites() {
			if more := n - stacksBefore[site]; more > 1 {
				fmt.Fprintf(&b, "+%d goroutines %s\n", more, site)
			}
		}
	}
	f.Detail = b.String()
	if t.Slowing {
		f.Note = strings.TrimSpace("the growth is slowing down: if a cache is filling up, raise leakcheck.Warmup. " + f.Note)
	}
	return f
}

// Table prints the samples, one line a round.
func (r *GrowthReport) Table() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "round\theap\tobjects\toutside\tdevice\tgoroutines\tfds\t")
	largest := int64(1)
	for _, s := range r.Samples {
		largest = max(largest, s.Heap)
	}
	for i, s := range r.Samples {
		size := ledger.FormatBytes
		fmt.Fprintf(w, "%d\t%s\t%d\t%s\t%s\t%d\t%d\t %s\n", r.Warmup+i, size(s.Heap), s.Objects, size(s.OffHeap), size(s.Device), s.Goroutines, s.Descriptors,
			strings.Repeat("#", int(20*s.Heap/largest)))
	}
	w.Flush()
	return b.String()
}

// svg plots every measure, each on its own scale.
func (r *GrowthReport) svg() string {
	var b strings.Builder
	const width, height = 640.0, 320.0
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" font-family="monospace" font-size="11">`+"\n", width, height)
	for k, m := range []struct {
		name, color string
		of          func(Sample) int64
	}{
		{"Go heap", "#1f77b4", func(s Sample) int64 { return s.Heap }},
		{"outside", "#ff7f0e", func(s Sample) int64 { return s.OffHeap }},
		{"device", "#2ca02c", func(s Sample) int64 { return s.Device }},
		{"goroutines", "#d62728", func(s Sample) int64 { return s.Goroutines }},
	} {
		largest := int64(1)
		for _, s := range r.Samples {
			largest = max(largest, m.of(s))
		}
		fmt.Fprintf(&b, `<text x="8" y="%d" fill="%s">%s, up to %d</text><polyline fill="none" stroke="%s" stroke-width="2" points="`, 14+14*k, m.color, m.name, largest, m.color)
		for i, s := range r.Samples {
			fmt.Fprintf(&b, "%.1f,%.1f ", 10+(width-20)*float64(i)/float64(max(1, len(r.Samples)-1)), height-10-(height-80)*float64(m.of(s))/float64(largest))
		}
		b.WriteString(`"/>` + "\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}
