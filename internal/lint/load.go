package lint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// listed is what go list says about a package.
type listed struct {
	ImportPath, Name, Dir, ForTest, Export string
	GoFiles, CgoFiles                      []string
	ImportMap                              map[string]string
}

// Load type-checks the test packages that patterns name, in a folder. It asks the go command, which
// compiles what they import.
func Load(ctx context.Context, dir string, patterns ...string) ([]Unit, error) {
	all, err := golist(ctx, dir, append([]string{
		"-test", "-deps", "-export",
		"-json=ImportPath,Name,Dir,ForTest,Export,GoFiles,CgoFiles,ImportMap",
	}, patterns...)...)
	if err != nil {
		return nil, err
	}
	named, err := golist(ctx, dir, append([]string{"-json=ImportPath"}, patterns...)...)
	if err != nil {
		return nil, err
	}
	wanted, exports := map[string]bool{}, map[string]string{}
	for _, p := range named {
		wanted[p.ImportPath] = true
	}
	for _, p := range all {
		exports[p.ImportPath] = p.Export
	}
	var units []Unit
	for _, p := range all {
		own, _, _ := strings.Cut(p.ImportPath, " ")
		if !wanted[p.ForTest] || own != p.ForTest && own != p.ForTest+"_test" {
			continue // compiled again for a test, and not the tested package
		}
		u, err := p.load(exports)
		if err != nil {
			return nil, err
		}
		units = append(units, u)
	}
	return units, nil
}

func golist(ctx context.Context, dir string, args ...string) (list []listed, err error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list"}, args...)...)
	var stderr strings.Builder
	cmd.Dir, cmd.Stderr = dir, &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.String())
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return list, err
		}
		list = append(list, p)
	}
}

// load parses and type-checks one package; what it imports comes from export data.
func (p listed) load(exports map[string]string) (Unit, error) {
	u := Unit{Path: p.ForTest, Fset: token.NewFileSet(), Info: newInfo()}
	for _, name := range append(p.GoFiles, p.CgoFiles...) {
		f, err := parser.ParseFile(u.Fset, filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return u, err
		}
		u.Files = append(u.Files, f)
	}
	lookup := func(path string) (io.ReadCloser, error) {
		if to := p.ImportMap[path]; to != "" {
			path = to
		}
		if exports[path] == "" {
			return nil, fmt.Errorf("go list has no export data of %s", path)
		}
		return os.Open(exports[path])
	}
	path, _, _ := strings.Cut(p.ImportPath, " ")
	conf := types.Config{
		Importer:    importer.ForCompiler(u.Fset, "gc", lookup),
		FakeImportC: true,
		Error:       func(error) {}, // it compiled; what cgo or a newer language hides has no type here
	}
	_, _ = conf.Check(path, u.Fset, u.Files, u.Info)
	return u, nil
}

func newInfo() *types.Info {
	return &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{},
		Defs:  map[*ast.Ident]types.Object{},
		Uses:  map[*ast.Ident]types.Object{},
	}
}
