// Package mutants reads the defects that are planted in the bundled engine, plants them, and keeps
// what found each of them.
package mutants

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Mutant is a defect that is planted in the bundled engine.
type Mutant struct {
	Name     string
	Property string // that must find it
	Test     string // or a package and one of its tests: it must fail and name what is kept
	Names    string // what that is
	File     string
	On       string // a flag of the subject: where it shows; "" in process
	add      string // to the end of the file
	old, new string
}

// Read reads a file of mutants.
func Read(file string) (list []Mutant, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for _, text := range strings.Split(string(data), "\n== ")[1:] {
		m, err := parse(text)
		if err != nil {
			return nil, fmt.Errorf("%s: mutant %q: %w", file, m.Name, err)
		}
		list = append(list, m)
	}
	return list, nil
}

func parse(text string) (m Mutant, err error) {
	name, rest, _ := strings.Cut(text, "\n")
	head, rest, _ := strings.Cut(rest, "-- ")
	m.Name = name
	for line := range strings.Lines(head) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "property":
			m.Property = value
		case "file":
			m.File = value
		case "test":
			m.Test = value
		case "names":
			m.Names = value
		case "on":
			m.On = value
		default:
			return m, fmt.Errorf("unknown field %q", key)
		}
	}
	if added, ok := strings.CutPrefix(rest, "append\n"); ok {
		m.add, rest, _ = strings.Cut(added, "-- ")
	}
	kind, rest, _ := strings.Cut(rest, "\n")
	m.old, m.new, _ = strings.Cut(rest, "-- new\n")
	m.new = strings.TrimSuffix(m.new, "\n") // the empty line before the next
	if m.new != "" && !strings.HasSuffix(m.new, "\n") {
		m.new += "\n"
	}
	if kind == "old part" {
		m.old, m.new = strings.TrimSuffix(m.old, "\n"), strings.TrimSuffix(m.new, "\n")
	}
	return m, nil
}

// Plant writes the source files with the mutants in them to dir, and returns the overlay for go
// build that names them.
func Plant(root, dir string, ms ...Mutant) (overlay string, err error) {
	sources := map[string]string{}
	for _, m := range ms {
		path := filepath.Join(root, m.File)
		source, ok := sources[path]
		if !ok {
			data, err := os.ReadFile(path)
			if err != nil {
				return "", err
			}
			source = string(data)
		}
		if n := strings.Count(source, m.old); n != 1 {
			return "", fmt.Errorf("mutant %q: its old text occurs %d times in %s, want once", m.Name, n, m.File)
		}
		sources[path] = strings.Replace(source, m.old, m.new, 1) + m.add
	}
	replace := map[string]string{}
	for path, source := range sources {
		file := filepath.Join(dir, fmt.Sprintf("%d_%s", len(replace), filepath.Base(path)))
		if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
			return "", err
		}
		replace[path] = file
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, data, 0o600)
}
