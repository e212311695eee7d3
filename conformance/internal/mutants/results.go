package mutants

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Result is what found a mutant.
type Result struct {
	Mutant   string
	Meant    string   // the property or test that is meant for it
	Found    bool     // by what is meant for it
	Died     bool     // the process died of it, in the whole suite
	Others   []string // properties that find it, too
	Detail   string   // what Meant said
	Seconds  float64
	Sources  string // hash of the sources that were built, see [Sources]
	Planted  string // hash of the mutant
	Revision string // commit, for people
}

// Results is a file of results, a line of JSON for each: a table of all mutants takes an hour of a
// core and can be put together from several runs, also from some at the same time.
type Results struct {
	file, sources, revision string
}

// Open opens a file of results that are of the sources in root. The file need not be there.
func Open(file, root string) (*Results, error) {
	sources, err := Sources(root)
	if err != nil {
		return nil, err
	}
	return &Results{file, sources, revision(root)}, nil
}

// Load reads all results of a file.
func Load(file string) (list []Result, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var x Result
		if json.Unmarshal(lines.Bytes(), &x) != nil {
			continue // a run was killed while it wrote this line
		}
		list = append(list, x)
	}
	return list, lines.Err()
}

// Of returns the result of a mutant as it is planted now, in the sources as they are now.
func (r *Results) Of(m Mutant) (Result, bool, error) {
	all, err := Load(r.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Result{}, false, err
	}
	for _, x := range all {
		if x.Mutant == m.Name && x.Sources == r.sources && x.Planted == m.hash() {
			return x, true, nil
		}
	}
	return Result{}, false, nil
}

// Add appends a result to the file.
func (r *Results) Add(m Mutant, x Result) error {
	x.Mutant, x.Sources, x.Planted, x.Revision = m.Name, r.sources, m.hash(), r.revision
	data, err := json.Marshal(x)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(r.file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	return errors.Join(err, f.Close())
}

func (m Mutant) hash() string {
	return fmt.Sprintf("%x", sha256.Sum256(fmt.Append(nil, m)))[:16]
}

// Sources returns a hash of the module's files that the program with the suite is built from.
func Sources(root string) (string, error) {
	cmd := exec.Command("go", "list", "-deps", "-f",
		`{{if .Module}}{{if .Module.Main}}{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}
{{end}}{{range .EmbedFiles}}{{$d}}/{{.}}
{{end}}{{end}}{{end}}`, "./conformance/internal/subject")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("list the sources: %w", err)
	}
	files := strings.Fields(string(out))
	slices.Sort(files)
	h := sha256.New()
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", name, len(data))
		h.Write(data)
	}
	return fmt.Sprintf("%x", h.Sum(nil))[:16], nil
}

// revision is the commit that is checked out in root, as far as git knows.
func revision(root string) string {
	cmd := exec.Command("git", "describe", "--always", "--dirty", "--exclude=*")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
