// Command matrix runs the conformance suite against several engines and prints a table of property
// × engine. With -w it replaces the table of a document:
//
//	go run ./conformance/internal/matrix -w docs/conformance.md
//	go run ./conformance/internal/matrix -attach llama-server=http://127.0.0.1:8080
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/enginetest/enginetest/conformance"
	"github.com/enginetest/enginetest/conformance/internal/bundled"
	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/server"
)

func main() {
	bundled.ServeIfTold()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "matrix:", err)
		os.Exit(1)
	}
}

// column is an engine of the table.
type column struct {
	name  string
	check func(opts ...conformance.Option) (conformance.Report, error)
}

func run() error {
	file := flag.String("w", "", "replace the table of this `file`")
	only := flag.String("only", "", "check only properties that match `regexp`")
	draws := flag.Int("draws", 20_000, "tokens that each property of the sampler draws")
	var attached []string
	flag.Func("attach", "also check a server that runs: `name=url`", func(s string) error {
		if !strings.Contains(s, "=http") {
			return errors.New("want name=url")
		}
		attached = append(attached, s)
		return nil
	})
	flag.Parse()
	expr, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "conformance")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	columns, err := engines(dir)
	if err != nil {
		return err
	}
	for _, a := range attached {
		name, url, _ := strings.Cut(a, "=")
		columns = append(columns, column{name, func(opts ...conformance.Option) (conformance.Report, error) {
			return conformance.Check(context.Background(), server.Attach(url), opts...)
		}})
	}
	var reports []conformance.Report
	for _, c := range columns {
		r, err := c.check(conformance.Name(c.name), conformance.Only(expr), conformance.Draws(*draws))
		if err != nil {
			return err
		}
		fmt.Fprintln(os.Stderr, r)
		reports = append(reports, r)
	}
	table := tableOf(reports)
	if *file == "" {
		fmt.Print(table)
		return nil
	}
	return replace(*file, table)
}

// engines are the places of the bundled engine.
func engines(dir string) (list []column, err error) {
	for i, x := range []struct {
		name    string
		core    engine.Core
		devices int
	}{{"in process", engine.InProcess, 1}, {"in a child", engine.ChildProcess, 1}, {
		"two devices", engine.InProcess,
		2,
	}} {
		cfg := bundled.Config(x.core, x.devices)
		own := fmt.Sprintf("%s/%d", dir, i)
		if err := os.Mkdir(own, 0o755); err != nil {
			return nil, err
		}
		base, err := bundled.Options(own, cfg)
		if err != nil {
			return nil, err
		}
		list = append(list, column{x.name, func(opts ...conformance.Option) (conformance.Report, error) {
			return conformance.Check(context.Background(), bundled.Open(cfg), append(base, opts...)...)
		}})
	}
	open, err := bundled.Served()
	if err != nil {
		return nil, err
	}
	return append(list, column{"served", func(opts ...conformance.Option) (conformance.Report, error) {
		return conformance.Check(context.Background(), open, append(bundled.ServerOptions(), opts...)...)
	}}), nil
}

// tableOf is a Markdown table: one row per property, one column per engine, and what lacks.
func tableOf(reports []conformance.Report) string {
	var b strings.Builder
	b.WriteString("| property |")
	for _, r := range reports {
		fmt.Fprintf(&b, " %s |", r.Engine)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(reports)) + "\n")
	for i, row := range reports[0].Results {
		fmt.Fprintf(&b, "| %s |", row.Property)
		for _, r := range reports {
			fmt.Fprintf(&b, " %s |", cell(r.Results, i, row.Property))
		}
		b.WriteString("\n")
	}
	b.WriteString("| took |")
	for _, r := range reports {
		fmt.Fprintf(&b, " %s |", r.Took.Round(100*time.Millisecond))
	}
	return b.String() + "\n"
}

func cell(results []conformance.Result, i int, property string) string {
	if i >= len(results) || results[i].Property != property {
		return "?"
	}
	switch r := results[i]; r.Verdict {
	case conformance.Passes:
		return "✓"
	case conformance.Lacks:
		return "lacks " + string(r.Lacking)
	default:
		return "✗"
	}
}

const begin, end = "<!-- matrix -->\n", "<!-- end of matrix -->\n"

// replace writes the table between its marks in a file.
func replace(file, table string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := bytes.Cut(data, []byte(begin))
	_, after, ok2 := bytes.Cut(rest, []byte(end))
	if !ok || !ok2 {
		return fmt.Errorf("%s has no lines %q and %q", file, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return os.WriteFile(file, bytes.Join([][]byte{before, []byte(begin), []byte(table), []byte(end), after}, nil),
		0o644)
}
