// Package bundle builds a folder with everything that a machine without Go, sources and network
// needs to run the tests of a module.
package bundle

import (
	"cmp"
	"context"
	_ "embed" // run.sh
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

//go:embed run.sh
var runScript []byte

// Options say what goes into a bundle.
type Options struct {
	Packages []string  // patterns of go list; "./..." when empty
	Out      string    // the folder; Out+".tar.gz" lies beside it
	Static   bool      // binaries that need no C library: cgo is off
	Flags    []string  // further flags of go test -c, such as -tags=cuda or -race
	Log      io.Writer // progress
}

// binary is one test binary of a bundle.
type binary struct {
	Name, Folder, ImportPath string
	dir                      string
}

// listed is what go list says of a package.
type listed struct {
	Dir, ImportPath           string
	TestGoFiles, XTestGoFiles []string
	Module                    *struct{ Path, Dir string }
	Error                     *struct{ Err string }
}

// Build builds the bundle. A package without tests is left out; one whose tests do not compile ends
// the build.
func Build(ctx context.Context, o Options) (err error) {
	if len(o.Packages) == 0 {
		o.Packages = []string{"./..."}
	}
	if !strings.Contains(filepath.Base(o.Out), "bundle") {
		return fmt.Errorf("the folder %s would be replaced: its name must contain \"bundle\"", o.Out)
	}
	root, err := root(ctx)
	if err != nil {
		return err
	}
	binaries, err := choose(ctx, o, root)
	if err != nil {
		return err
	}
	out := o.Out
	if err := os.MkdirAll(filepath.Dir(out), 0o777); err != nil {
		return err
	}
	stage, err := os.MkdirTemp(filepath.Dir(out), ".bundle-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(stage)) }()
	o.Out = filepath.Join(stage, filepath.Base(out))
	if err := o.fill(ctx, root, binaries); err != nil {
		return err
	}
	return errors.Join(replace(o.Out, out), replace(o.Out+".tar.gz", out+".tar.gz"))
}

// replace moves what was built to where it belongs.
func replace(from, to string) error {
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	return os.Rename(from, to)
}

// fill builds everything in o.Out.
func (o Options) fill(ctx context.Context, root string, binaries []binary) error {
	for _, dir := range []string{"bin", "src"} {
		if err := os.MkdirAll(filepath.Join(o.Out, dir), 0o777); err != nil {
			return err
		}
	}
	for _, b := range binaries {
		if err := o.compile(ctx, b); err != nil {
			return err
		}
	}
	if err := o.data(root); err != nil {
		return err
	}
	if err := o.command(ctx, root); err != nil {
		return err
	}
	if err := o.describe(ctx, binaries); err != nil {
		return err
	}
	return archive(o.Out)
}

// root is the folder that the paths in src are relative to: the workspace's or the module's.
func root(ctx context.Context) (string, error) {
	out, err := output(ctx, "go", "env", "GOWORK", "GOMOD")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); line != "" && line != "off" && line != os.DevNull && line != "NUL" {
			return filepath.Dir(line), nil
		}
	}
	return "", errors.New("no go.mod here or above: a bundle is built inside of a module")
}

// choose lists the packages with tests.
func choose(ctx context.Context, o Options, root string) ([]binary, error) {
	args := append([]string{"go", "list", "-e", "-json=Dir,ImportPath,TestGoFiles,XTestGoFiles,Module,Error"},
		tags(o.Flags)...)
	out, err := output(ctx, append(args, o.Packages...)...)
	if err != nil {
		return nil, err
	}
	var list []binary
	d := json.NewDecoder(strings.NewReader(out))
	for d.More() {
		var p listed
		if err := d.Decode(&p); err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		if p.Error != nil && len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 {
			return nil, fmt.Errorf("%s: %s", p.ImportPath, p.Error.Err)
		}
		if len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 {
			fmt.Fprintf(o.Log, "bundle: %s: no tests, left out\n", p.ImportPath)
			continue
		}
		rel, err := filepath.Rel(root, p.Dir)
		if err != nil || strings.HasPrefix(rel, "..") {
			return nil, fmt.Errorf("%s lies outside of %s", p.Dir, root)
		}
		name := strings.ReplaceAll(filepath.ToSlash(rel), "/", "-")
		short := rel
		if rel == "." {
			name, short = filepath.Base(p.ImportPath), "."
		}
		list = append(list, binary{Name: name, Folder: filepath.ToSlash(short), ImportPath: p.ImportPath, dir: p.Dir})
	}
	if list == nil {
		return nil, fmt.Errorf("no package with tests among: %s", strings.Join(o.Packages, " "))
	}
	slices.SortFunc(list, func(a, b binary) int { return cmp.Compare(a.ImportPath, b.ImportPath) })
	return list, nil
}

// compile builds one test binary, with DWARF: a leak's message names variables by it.
func (o Options) compile(ctx context.Context, b binary) error {
	fmt.Fprintf(o.Log, "bundle: %s\n", b.ImportPath)
	args := append([]string{"go", "test", "-c", "-trimpath"}, o.Flags...)
	args = append(args, "-o", filepath.Join(o.Out, "bin", b.Name+".test"), b.ImportPath)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = o.env()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", b.ImportPath, err, out)
	}
	to := filepath.Join(o.Out, "src", b.Folder)
	if err := os.MkdirAll(to, 0o777); err != nil {
		return err
	}
	return beside(b.dir, to)
}

func (o Options) env() []string {
	if o.Static {
		return append(os.Environ(), "CGO_ENABLED=0")
	}
	return os.Environ()
}

// beside copies the files of a package's folder that its tests may open; Go sources are not needed.
func beside(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || filepath.Ext(e.Name()) == ".go" {
			continue
		}
		if err := copyFile(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// data copies every testdata folder: tests open those of other packages too.
func (o Options) data(root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || path == root {
			return err
		}
		switch name := d.Name(); {
		case name == "testdata":
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			to := filepath.Join(o.Out, "src", rel)
			if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o777), copyTree(path, to)); err != nil {
				return err
			}
			return fs.SkipDir
		case name == "vendor" || name == "node_modules" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_"):
			return fs.SkipDir
		case fileExists(filepath.Join(path, "run.sh")) && fileExists(filepath.Join(path, "packages")): // another bundle
			return fs.SkipDir
		}
		return nil
	})
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// ownModule is where the command enginetest can be built from source.
const ownModule = "github.com/enginetest/enginetest"

// command puts the command enginetest into the bundle: built, in its own module; elsewhere, this
// very program.
func (o Options) command(ctx context.Context, root string) error {
	to := filepath.Join(o.Out, "enginetest")
	if path, err := output(ctx, "go", "list", "-m"); err == nil && strings.TrimSpace(path) == ownModule {
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", to, "./cmd/enginetest")
		cmd.Dir, cmd.Env = root, o.env()
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build of the command enginetest: %w\n%s", err, out)
		}
		return nil
	}
	target, err := output(ctx, "go", "env", "GOOS", "GOARCH")
	if err != nil {
		return err
	}
	if want := runtime.GOOS + "\n" + runtime.GOARCH; strings.TrimSpace(target) != want {
		return fmt.Errorf("this enginetest runs on %s/%s and the bundle is for %s: build the command for it and run that",
			runtime.GOOS, runtime.GOARCH, strings.ReplaceAll(strings.TrimSpace(target), "\n", "/"))
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return copyFile(self, to)
}

// describe writes what run.sh reads.
func (o Options) describe(ctx context.Context, binaries []binary) error {
	var packages strings.Builder
	for _, b := range binaries {
		fmt.Fprintf(&packages, "%s %s %s\n", b.Name, b.Folder, b.ImportPath)
	}
	commit, err := output(ctx, "git", "describe", "--always", "--dirty")
	if err != nil {
		commit = "unknown\n"
	}
	version, err := output(ctx, "go", "version")
	if err != nil {
		return err
	}
	cgo, err := output(ctx, "go", "env", "CGO_ENABLED")
	if err != nil {
		return err
	}
	if o.Static {
		cgo = "0\n"
	}
	return errors.Join(
		os.WriteFile(filepath.Join(o.Out, "packages"), []byte(packages.String()), 0o666),
		os.WriteFile(filepath.Join(o.Out, "built"), []byte(commit+version+"CGO_ENABLED="+cgo), 0o666),
		os.WriteFile(filepath.Join(o.Out, "run.sh"), runScript, 0o755),
		os.Chmod(filepath.Join(o.Out, "run.sh"), 0o755),
	)
}

// tags returns the flags that go list needs as well.
func tags(flags []string) (kept []string) {
	for _, f := range flags {
		if name := strings.TrimLeft(f, "-"); strings.HasPrefix(name, "tags=") || name == "race" ||
			strings.HasPrefix(name, "mod") {
			kept = append(kept, f)
		}
	}
	return kept
}

func output(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out), nil
}

func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch target := filepath.Join(to, rel); {
		case d.IsDir():
			return os.MkdirAll(target, 0o777)
		case d.Type()&fs.ModeSymlink != 0:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		case d.Type().IsRegular():
			return copyFile(path, target)
		}
		return nil
	})
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, info.Mode().Perm()|0o200)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close(), os.Chtimes(to, info.ModTime(), info.ModTime()))
}
