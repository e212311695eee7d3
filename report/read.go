package report

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Format is the form of an input.
type Format string

// The formats that Read recognizes.
const (
	FormatJSON   Format = "go test -json"
	FormatText   Format = "go test -v"
	FormatJUnit  Format = "junit"
	FormatReport Format = "report" // this package's own JSON
)

// maxLine bounds one line of an input; a longer one is cut.
const maxLine = 4 << 20

// Source says where an input comes from.
type Source struct {
	Name    string // a file's name, "stdin"
	Package string // for logs that do not say which package they are of
	Shard   string
}

// Read adds one input to the collector and recognizes its format by its first bytes. What cannot be
// read is noted in the report's Input and does not stop the rest; the error is that of r, or says
// that the input is empty.
func (c *Collector) Read(r io.Reader, src Source) error {
	br := bufio.NewReaderSize(r, 64<<10)
	head, err := br.Peek(4096)
	if len(bytes.TrimSpace(head)) == 0 {
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
			return fmt.Errorf("read %s: %w", src.Name, err)
		}
		c.begin(src, FormatText)
		c.input.Broken, c.input.Problem = true, "it is empty; was the test command killed before it began?"
		return fmt.Errorf("read %s: %s", src.Name, c.input.Problem)
	}
	c.begin(src, sniff(head))
	defer c.end()
	switch c.input.Format {
	case FormatJUnit:
		err = c.readJUnit(br)
	case FormatReport:
		err = c.readReport(br)
	default:
		err = c.readLines(br)
	}
	if err != nil {
		c.input.Broken = true
		c.problem("the input ended early: " + err.Error())
		return fmt.Errorf("read %s: %w", src.Name, err)
	}
	return nil
}

func sniff(head []byte) Format {
	text := strings.TrimSpace(strings.TrimPrefix(string(head), "\ufeff"))
	switch {
	case strings.HasPrefix(text, "<"):
		return FormatJUnit
	case strings.HasPrefix(text, "{") && strings.Contains(text, `"`+SchemaVersion+`"`):
		return FormatReport
	case strings.HasPrefix(text, "{"):
		return FormatJSON
	case strings.Contains(text, "\n{\"Time\":") || strings.Contains(text, "\n{\"Action\":"):
		return FormatJSON // a download's progress or a warning before the first event
	}
	return FormatText
}

func (c *Collector) readLines(br *bufio.Reader) error {
	lines := lineReader{r: br}
	for {
		line, err := lines.next()
		if line != "" {
			c.line(line)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Line adds one line of a live stream that Begin opened.
func (c *Collector) line(line string) {
	if c.input.Format == FormatText {
		c.text.line(line)
		return
	}
	e, ok := parseEvent(line)
	if !ok {
		c.stray(line)
		return
	}
	c.event(e)
}

// stray takes a line that is no event: a build error of an old go command, a message of a wrapper.
func (c *Collector) stray(line string) {
	line = strings.TrimRight(line, "\r\n")
	if strings.TrimSpace(line) == "" {
		return
	}
	c.problem("no event: " + abbreviate(line, 200))
	c.strays = append(c.strays, line)
	if len(c.strays) > 200 {
		c.strays = c.strays[1:]
	}
}

func (c *Collector) problem(text string) {
	c.input.Problems++
	if c.input.Problem == "" {
		c.input.Problem = text
	}
}

// lineReader reads lines of any length and cuts those beyond maxLine.
type lineReader struct{ r *bufio.Reader }

func (l lineReader) next() (string, error) {
	var long []byte
	for {
		part, err := l.r.ReadSlice('\n')
		if err == nil && long == nil {
			return string(part), nil
		}
		if len(long) < maxLine {
			long = append(long, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return string(long), err
		}
	}
}

func abbreviate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
