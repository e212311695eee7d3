package report

import (
	"fmt"
	"html/template"
	"strings"
	"time"
)

// The size of a drawing in its own units; the page scales it.
const (
	drawWidth   = 640
	curveHeight = 130
	rowHeight   = 22
	labelWidth  = 130
)

// curve draws a device's memory over time: a step per change, the bound as a dashed line, peak and
// end as points.
func curve(m Memory) template.HTML {
	points := m.Points
	if len(points) == 0 {
		points = []Point{{0, m.After}}
	}
	end := max(points[len(points)-1].After, time.Millisecond)
	top := max(m.Peak, m.Target, m.After, 1)
	x := func(d time.Duration) float64 { return 8 + float64(d)/float64(end)*(drawWidth-16) }
	y := func(n int64) float64 { return 22 + (1-float64(n)/float64(top))*(curveHeight-42) }
	var path strings.Builder
	fmt.Fprintf(&path, "M%.1f %.1f", x(points[0].After), y(points[0].Used))
	peak := points[0]
	for _, p := range points[1:] {
		fmt.Fprintf(&path, "H%.1fV%.1f", x(p.After), y(p.Used))
		if p.Used > peak.Used {
			peak = p
		}
	}
	fmt.Fprintf(&path, "H%.1f", x(end))
	first := points[0].Used
	text := fmt.Sprintf("Memory of %s: %s at the begin, peak %s, %s after %s", m.Device, size(first), size(m.Peak),
		size(m.After), took(end))
	if m.Target > 0 {
		text += fmt.Sprintf(", at most %s wanted", size(m.Target))
	}
	var b strings.Builder
	svgOpen(&b, curveHeight, text)
	fmt.Fprintf(&b, `<path class="fill" d="%sV%.1fH%.1fZ"/><path class="line" d="%s"/>`, path.String(), y(0),
		x(points[0].After), path.String())
	if m.Target > 0 {
		fmt.Fprintf(&b,
			`<line class="bound" x1="8" x2="%d" y1="%.1f" y2="%.1f"/><text x="12" y="%.1f">at most %s</text>`,
			drawWidth-8, y(m.Target), y(m.Target), y(m.Target)-4, size(m.Target))
	}
	fmt.Fprintf(&b,
		`<circle class="dot" cx="%.1f" cy="%.1f" r="3"/><text x="%.1f" y="12" text-anchor="%s">peak %s</text>`,
		x(peak.After), y(peak.Used), x(peak.After), anchor(x(peak.After)), size(m.Peak))
	fmt.Fprintf(&b, `<circle class="dot %s" cx="%.1f" cy="%.1f" r="3"/>`, state(m.Clear), x(end), y(m.After))
	fmt.Fprintf(&b, `<text x="8" y="%d">begin %s</text><text x="%d" y="%d" text-anchor="end">after %s: %s</text></svg>`,
		curveHeight-5, size(first), drawWidth-8, curveHeight-5, took(end), size(m.After))
	return template.HTML(b.String()) //nolint:gosec // numbers, and text that svgOpen escapes
}

// timeline draws the steps of a teardown one below the other, each where it began.
func timeline(t Teardown) template.HTML {
	var sum time.Duration
	for _, s := range t.Steps {
		sum += s.Took
	}
	sum = max(sum, time.Microsecond)
	width := float64(drawWidth - labelWidth - 96)
	var b strings.Builder
	svgOpen(&b, len(t.Steps)*rowHeight+6, fmt.Sprintf("Teardown of %s: %d steps in %s", t.Name, len(t.Steps),
		took(t.Took)))
	var at time.Duration
	for i, s := range t.Steps {
		top := i * rowHeight
		from, long := labelWidth+float64(at)/float64(sum)*width, max(2, float64(s.Took)/float64(sum)*width)
		class, note := "ok", took(s.Took)
		switch {
		case s.Error != "":
			class, note = "bad", took(s.Took)+" ✗"
		case s.Skipped != "":
			class, note = "skip", "not checked"
		}
		fmt.Fprintf(&b, `<g><title>%s</title><text x="0" y="%d">%s</text><rect class="track" x="%d" y="%d" width="%.1f" height="12" rx="2"/>`,
			template.HTMLEscapeString(step(s)), top+15, template.HTMLEscapeString(s.Name), labelWidth, top+5, width)
		fmt.Fprintf(&b,
			`<rect class="bar %s" x="%.1f" y="%d" width="%.1f" height="12" rx="2"/><text x="%.1f" y="%d">%s</text></g>`,
			class, from, top+5, long, labelWidth+width+8, top+15, note)
		at += s.Took
	}
	b.WriteString("</svg>")
	return template.HTML(b.String()) //nolint:gosec // every text is escaped above
}

// step describes one step in a line.
func step(s TeardownStep) string {
	text := s.Name + ": " + took(s.Took)
	if s.Budget > 0 {
		text += " of " + took(s.Budget)
	}
	if what := orElse(s.Error, orElse(s.Skipped, s.Detail)); what != "" {
		text += ", " + abbreviate(what, 300)
	}
	return text
}

func svgOpen(b *strings.Builder, height int, text string) {
	text = template.HTMLEscapeString(text)
	fmt.Fprintf(b, `<svg viewBox="0 0 %d %d" role="img" aria-label="%s"><title>%s</title>`, drawWidth, height, text,
		text)
}

func anchor(x float64) string {
	switch {
	case x < 60:
		return "start"
	case x > drawWidth-60:
		return "end"
	}
	return "middle"
}

func state(ok bool) string {
	if ok {
		return "ok"
	}
	return "bad"
}
