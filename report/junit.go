package report

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
)

type junitSuites struct {
	XMLName  xml.Name     `xml:"testsuites"`
	Name     string       `xml:"name,attr,omitempty"`
	Tests    int          `xml:"tests,attr"`
	Failures int          `xml:"failures,attr"`
	Skipped  int          `xml:"skipped,attr"`
	Time     string       `xml:"time,attr"`
	Suites   []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name      string     `xml:"name,attr"`
	Tests     int        `xml:"tests,attr"`
	Failures  int        `xml:"failures,attr"`
	Skipped   int        `xml:"skipped,attr"`
	Time      string     `xml:"time,attr"`
	Timestamp string     `xml:"timestamp,attr,omitempty"`
	Cases     []junitOut `xml:"testcase"`
}

type junitOut struct {
	Class   string      `xml:"classname,attr"`
	Name    string      `xml:"name,attr"`
	Time    string      `xml:"time,attr"`
	Props   *junitProps `xml:"properties,omitempty"`
	Failure *junitText  `xml:"failure,omitempty"`
	Skipped *junitText  `xml:"skipped,omitempty"`
}

type junitProps struct {
	List []junitPropOut `xml:"property"`
}

type junitPropOut struct {
	Name  string `xml:"name,attr"`
	Value string `xml:"value,attr"`
}

// WriteJUnit writes JUnit XML. A failure's type is its class; signature, evidence and the rest are
// properties.
func (r *Report) WriteJUnit(w io.Writer) error {
	out := junitSuites{Name: r.Name, Tests: len(r.Tests), Time: xmlSeconds(r.Elapsed)}
	index := map[string]int{}
	for i := range r.Tests {
		t := &r.Tests[i]
		at, ok := index[t.Package]
		if !ok {
			at = len(out.Suites)
			index[t.Package] = at
			s := junitSuite{Name: t.Package, Time: xmlSeconds(r.elapsed(t.Package))}
			if !t.Started.IsZero() {
				s.Timestamp = t.Started.UTC().Format(time.RFC3339)
			}
			out.Suites = append(out.Suites, s)
		}
		s := &out.Suites[at]
		c := t.junit()
		s.Cases = append(s.Cases, c)
		s.Tests++
		if c.Failure != nil {
			s.Failures++
			out.Failures++
		}
		if c.Skipped != nil {
			s.Skipped++
			out.Skipped++
		}
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", " ")
	if err := e.Encode(out); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

func (t *Test) junit() junitOut {
	c := junitOut{Class: t.Package, Name: orElse(t.Name, "TestMain"), Time: xmlSeconds(t.Elapsed)}
	switch {
	case t.Status.Failed():
		c.Failure = &junitText{
			Message: xmlText(t.Message), Type: orElse(string(t.Class), string(t.Status)),
			Text: xmlText(t.Output),
		}
	case t.Status == StatusSkip:
		c.Skipped = &junitText{Message: xmlText(t.Message), Type: string(t.Class)}
	}
	var props []junitPropOut
	add := func(name, value string) {
		if value != "" {
			props = append(props, junitPropOut{name, xmlText(value)})
		}
	}
	add("verdict.class", string(t.Class))
	add("verdict.signature", t.Signature)
	add("verdict.evidence", t.Evidence)
	add("triage", string(t.Triage))
	add("shard", t.Shard)
	add("repro", t.Repro)
	if n := len(t.Attempts); n > 0 {
		add("attempts", fmt.Sprint(n+1))
	}
	if t.Quarantine != nil {
		add("quarantine", fmt.Sprintf("%s until %s", t.Quarantine.Owner, t.Quarantine.Expires.Format(time.DateOnly)))
	}
	for _, key := range sortedKeys(t.Attributes) {
		if !strings.HasPrefix(key, "verdict.") {
			add(key, t.Attributes[key])
		}
	}
	if props != nil {
		c.Props = &junitProps{props}
	}
	return c
}

func (r *Report) elapsed(pkg string) time.Duration {
	for _, p := range r.Packages {
		if p.Name == pkg {
			return p.Elapsed
		}
	}
	return 0
}

func xmlSeconds(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }

// xmlText drops what XML 1.0 cannot hold: escape sequences of terminals, NUL.
func xmlText(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r == '\r' || r >= 0x20 && r != unicode.ReplacementChar && r != 0xFFFE &&
			r != 0xFFFF {
			return r
		}
		return -1
	}, s)
}
