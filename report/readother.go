package report

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// junitCase is a test case of a JUnit file, as most writers write it.
type junitCase struct {
	Class   string      `xml:"classname,attr"`
	Name    string      `xml:"name,attr"`
	Time    string      `xml:"time,attr"`
	Failure []junitText `xml:"failure"`
	Error   []junitText `xml:"error"`
	Skipped *junitText  `xml:"skipped"`
	Out     string      `xml:"system-out"`
	Err     string      `xml:"system-err"`
	Props   []junitProp `xml:"properties>property"`
}

type junitText struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr"`
	Text    string `xml:",chardata"`
}

type junitProp struct {
	Name  string `xml:"name,attr"`
	Value string `xml:"value,attr"`
	Text  string `xml:",chardata"`
}

// readJUnit reads the test cases one by one, wherever they are in the document.
func (c *Collector) readJUnit(r io.Reader) error {
	d := xml.NewDecoder(r)
	d.CharsetReader = func(_ string, in io.Reader) (io.Reader, error) { return in, nil }
	suite := ""
	for {
		token, err := d.Token()
		if err == io.EOF { //nolint:errorlint // Token returns it bare
			return nil
		}
		if err != nil {
			return err
		}
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		switch start.Name.Local {
		case "testsuite":
			suite = ""
			for _, a := range start.Attr {
				if a.Name.Local == "name" {
					suite = a.Value
				}
			}
		case "testcase":
			var tc junitCase
			if err := d.DecodeElement(&tc, &start); err != nil {
				return err
			}
			c.junitCase(orElse(tc.Class, suite), tc)
		}
	}
}

func (c *Collector) junitCase(pkg string, tc junitCase) {
	pkg = orElse(pkg, orElse(c.source.Package, "junit"))
	e := event{Package: pkg, Test: orElse(tc.Name, "(unnamed)")}
	emit := func(action, output string) {
		e.Action, e.Output = action, output
		c.event(e)
	}
	emit("run", "")
	for _, p := range tc.Props {
		a := e
		a.Action, a.Key, a.Value = "attr", p.Name, orElse(p.Value, strings.TrimSpace(p.Text))
		c.event(a)
	}
	for _, text := range []string{tc.Out, tc.Err} {
		emit("output", closeLine(text))
	}
	action := "pass"
	for _, f := range append(tc.Failure, tc.Error...) {
		action = "fail"
		emit("output", closeLine(f.Message)+closeLine(f.Text))
	}
	if tc.Skipped != nil && action == "pass" {
		action = "skip"
		emit("output", closeLine(tc.Skipped.Message)+closeLine(tc.Skipped.Text))
	}
	e.Elapsed, _ = strconv.ParseFloat(strings.ReplaceAll(tc.Time, ",", ""), 64)
	emit(action, "")
	if p := c.pkg(pkg); !p.ended || action == "fail" {
		p.ended, p.Status = true, Status(action)
	}
}

func closeLine(s string) string {
	if s = strings.Trim(s, "\n"); s == "" {
		return ""
	}
	return s + "\n"
}

// readReport adds the tests of an earlier report, with the classes that they have there.
func (c *Collector) readReport(r io.Reader) error {
	old, err := ReadJSON(r)
	if err != nil {
		return err
	}
	c.clock(old.Started)
	if !old.Started.IsZero() {
		c.clock(old.Started.Add(old.Elapsed))
	}
	c.shards = append(c.shards, old.Shards...)
	if c.command == nil {
		c.command = old.Command
	}
	for _, p := range old.Packages {
		rec := c.pkg(p.Name)
		elapsed := rec.Elapsed + p.Elapsed
		if !rec.ended || p.Status.Failed() {
			rec.Package = p
		}
		rec.ended, rec.Elapsed = true, elapsed
	}
	for _, t := range old.Tests {
		key := t.Package + "\x00" + t.Name
		rec := c.tests[key]
		if rec == nil {
			rec = &record{}
			c.tests[key] = rec
			c.order = append(c.order, rec)
		}
		t.Shard = orElse(t.Shard, c.source.Shard)
		run := &testRun{Test: t, ended: t.Status != StatusUnfinished, final: true}
		if n := len(rec.runs); n > 0 {
			run.retry = c.retrying || !rec.runs[n-1].ended
		}
		rec.runs = append(rec.runs, run)
		c.pkg(t.Package).runs = append(c.pkg(t.Package).runs, run)
		c.input.Tests++
	}
	return nil
}

// ReadJSON reads a report that WriteJSON wrote.
func ReadJSON(r io.Reader) (*Report, error) {
	var rep Report
	if err := json.NewDecoder(r).Decode(&rep); err != nil {
		return nil, fmt.Errorf("report: not the JSON of a report: %w", err)
	}
	if rep.Schema != SchemaVersion {
		return nil, fmt.Errorf("report: the schema is %q, this program reads %q", rep.Schema, SchemaVersion)
	}
	return &rep, nil
}

// WriteJSON writes the report in the form of report.schema.json.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(r)
}

// took formats a duration for people: 1.2s, 350ms.
func took(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(time.Millisecond).String()
	case d == 0:
		return "0s"
	}
	return d.Round(time.Microsecond).String()
}
