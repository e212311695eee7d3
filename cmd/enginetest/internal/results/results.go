// Package results holds what the commands run and report do with a report: options, history, files.
package results

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/enginetest/enginetest/report"
	"github.com/spf13/pflag"
)

// Options are the flags that both commands have.
type Options struct {
	Name, Commit                 string
	JSON, JUnit, HTML, Markdown  string
	GitHub                       bool
	History                      string
	Save                         bool
	Quarantine                   string
	CapacitySkips, MaxSkips, Max int
	AllowSkip                    []string
}

// AddFlags adds the flags to a command.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVar(&o.JSON, "json", "", "write the report as JSON to `FILE`")
	f.StringVar(&o.JUnit, "junit", "", "write JUnit XML to `FILE`")
	f.StringVar(&o.HTML, "html", "", "write one HTML page to `FILE`")
	f.StringVar(&o.Markdown, "markdown", "", "append a Markdown summary to `FILE`")
	f.BoolVar(&o.GitHub, "github", os.Getenv("GITHUB_ACTIONS") == "true",
		"annotations on standard output and a step summary; on in GitHub Actions")
	f.StringVar(&o.History, "history", "", "compare with the JSON reports in `DIR`: new, known, flaky, fixed")
	f.BoolVar(&o.Save, "save", false, "add this report to the history")
	f.StringVar(&o.Quarantine, "quarantine", "",
		"failures that have an owner and do not fail the run until a day, in `FILE`")
	f.IntVar(&o.CapacitySkips, "max-capacity-skips", 0,
		"tests that may be skipped because the machine lacks something; -1 is any number")
	f.StringArrayVar(&o.AllowSkip, "allow-skip", nil,
		"accept such a skip when \"package.Test: reason\" matches `REGEX`; can be repeated")
	f.IntVar(&o.MaxSkips, "max-skips", -1, "tests that may be skipped for any reason; -1 is any number")
	f.IntVar(&o.Max, "max-failures", 50, "failures that are printed; 0 is all")
	f.StringVar(&o.Name, "name", "", "the report's title")
	f.StringVar(&o.Commit, "commit", os.Getenv("GITHUB_SHA"),
		"the code under test, so that the same code's results can be compared")
}

// Check refuses options that cannot work, before any test runs.
func (o *Options) Check() error {
	if o.Save && o.History == "" {
		return errors.New("--save needs --history DIR")
	}
	if _, err := o.policy(0); err != nil {
		return err
	}
	_, err := o.quarantine()
	return err
}

func (o *Options) policy(exit int) (report.Policy, error) {
	p := report.Policy{CapacitySkips: o.CapacitySkips, MaxSkips: &o.MaxSkips, Exit: exit}
	for _, s := range o.AllowSkip {
		re, err := regexp.Compile(s)
		if err != nil {
			return p, fmt.Errorf("--allow-skip: %w", err)
		}
		p.AllowSkip = append(p.AllowSkip, re)
	}
	return p, nil
}

func (o *Options) quarantine() ([]report.Quarantine, error) {
	if o.Quarantine == "" {
		return nil, nil
	}
	f, err := os.Open(o.Quarantine)
	if err != nil {
		return nil, fmt.Errorf("--quarantine: %w", err)
	}
	defer f.Close()
	list, err := report.ReadQuarantine(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.Quarantine, err)
	}
	return list, nil
}

// Load reads the JSON reports of a folder; a folder that is not there has none. A file that is no
// report is passed over.
func Load(dir string) (list []*report.Report, err error) {
	if dir == "" {
		return nil, nil
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	for _, name := range files {
		f, openErr := os.Open(name)
		if openErr != nil {
			return nil, openErr
		}
		r, readErr := report.ReadJSON(f)
		_ = f.Close()
		if readErr == nil {
			list = append(list, r)
		}
	}
	return list, err
}

// Finish judges the report, compares it and writes everything that was asked for. exit is the exit
// code of the test command. part says that the report is one shard of a run.
func (o *Options) Finish(r *report.Report, exit int, part bool, stdout, stderr io.Writer) error {
	r.Name, r.Commit = o.Name, o.Commit
	history, err := Load(o.History)
	if err != nil {
		return fmt.Errorf("--history: %w", err)
	}
	if o.History != "" {
		r.Compare(history)
	}
	list, err := o.quarantine()
	if err != nil {
		return err
	}
	for _, q := range r.Hold(list) {
		fmt.Fprintf(stderr, "quarantine: %s (%s, until %s) matches no test\n", q.Pattern, q.Owner,
			q.Expires.Format(time.DateOnly))
	}
	policy, err := o.policy(exit)
	if err != nil {
		return err
	}
	policy.Part = part
	r.Judge(policy)
	return errors.Join(o.files(r), o.print(r, stdout))
}

func (o *Options) files(r *report.Report) error {
	errs := []error{
		write(o.JSON, r.WriteJSON), write(o.JUnit, r.WriteJUnit), write(o.HTML, r.WriteHTML), add(o.Markdown,
			r.WriteMarkdown),
	}
	if o.GitHub {
		errs = append(errs, add(os.Getenv("GITHUB_STEP_SUMMARY"), r.WriteMarkdown))
	}
	if o.Save {
		errs = append(errs, os.MkdirAll(o.History, 0o777))
		name := time.Now().UTC().Format("20060102T150405.000000000Z") + ".json"
		errs = append(errs, write(filepath.Join(o.History, name), r.WriteJSON))
	}
	return errors.Join(errs...)
}

func (o *Options) print(r *report.Report, w io.Writer) error {
	if o.GitHub {
		if err := r.WriteAnnotations(w, folders()); err != nil {
			return err
		}
	}
	return r.WriteText(w, report.TextOptions{Color: Color(w), Max: o.Max})
}

// write creates a file, with the folders that it is in; "" is none. It is complete or not there.
func write(name string, content func(io.Writer) error) error {
	if name == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".report-*")
	if err != nil {
		return err
	}
	err = errors.Join(content(f), f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

func add(name string, content func(io.Writer) error) error {
	if name == "" {
		return nil
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	return errors.Join(content(f), f.Close())
}

// folders maps import paths to folders by the go.mod of the current directory; nil without one.
func folders() func(string) string {
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(mod)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "module "); ok {
			return func(pkg string) string {
				return strings.TrimPrefix(strings.TrimPrefix(pkg, strings.TrimSpace(path)), "/")
			}
		}
	}
	return nil
}

// Inputs returns the files that arguments name: a folder stands for the results in it.
func Inputs(args []string) (files []string, err error) {
	for _, arg := range args {
		info, err := os.Stat(arg)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			files = append(files, arg)
			continue
		}
		err = filepath.WalkDir(arg, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() && result(path) {
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

func result(path string) bool {
	switch filepath.Ext(path) {
	case ".json", ".jsonl", ".log", ".xml":
		return true
	}
	return false
}
