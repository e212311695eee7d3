package symbols

import (
	"bytes"
	"cmp"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// startDir is the package's folder: go test starts a test there.
var startDir, _ = os.Getwd()

// companion links this program again, with symbols: go test leaves them out. The flags are those
// that the go command recorded in the program. The result is only used when its layout is proven to
// be the same.
func companion(ctx context.Context, self string) (path string, err error) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", errors.New("the program has no build information")
	}
	goTool, err := exec.LookPath("go")
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "leakcheck-companion-")
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
		}
	}()
	path = filepath.Join(dir, "companion")
	args := []string{"build", "-o", path}
	target := info.Path
	if strings.HasSuffix(info.Path, ".test") {
		args, target = []string{"test", "-c", "-vet=off", "-o", path}, "."
	}
	env := append(os.Environ(), "GOTMPDIR="+dir) // what go leaves when it is killed goes with dir
	for _, s := range info.Settings {
		switch s.Key {
		case "-race", "-cover", "-covermode", "-trimpath", "-msan", "-asan", "-tags", "-gcflags", "-asmflags",
			"-ldflags", "-pgo":
			if s.Key == "-ldflags" {
				s.Value = withSymbols(s.Value)
			}
			if s.Value != "" {
				args = append(args, s.Key+"="+s.Value)
			}
		case "CGO_ENABLED", "GOARCH", "GOOS", "GOAMD64", "GOARM64", "GOEXPERIMENT", "CGO_CFLAGS", "CGO_LDFLAGS":
			env = append(env, s.Key+"="+s.Value)
		}
	}
	link := func(dir string, more ...string) error {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, goTool, slices.Concat(args, more)...)
		cmd.Dir, cmd.Env, cmd.WaitDelay = dir, env, time.Second
		killGroup(cmd)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(out[:min(len(out), 300)]))
		}
		return sameLayout(self, path)
	}
	mode := testing.CoverMode()
	if mode == "" {
		return path, link(startDir, target)
	}
	mode = "-covermode=" + mode // of coverage, the program records only that there is any
	if err = link(startDir, mode, target); err != nil {
		// the usual way to count all packages; the flag's text is in the program, too
		if root := moduleRoot(startDir); root != "" {
			err = link(root, mode, "-coverpkg=./...", strings.TrimSuffix(info.Path, ".test"))
		}
	}
	return path, err
}

// withSymbols replaces the linker's flags that strip the program (-s and -w) by two that do nothing
// (-a and -n). The program records its flags: a text of another length would move its data.
func withSymbols(ldflags string) string {
	words := strings.Split(ldflags, " ")
	for i, w := range words {
		name, value, _ := strings.Cut(w, "=")
		if on, err := strconv.ParseBool(cmp.Or(value, "true")); err != nil || !on {
			continue
		}
		switch strings.TrimLeft(name, "-") {
		case "s":
			words[i] = strings.Replace(w, "s", "a", 1)
		case "w":
			words[i] = strings.Replace(w, "w", "n", 1)
		}
	}
	return strings.Join(words, " ")
}

// moduleRoot is the next folder up that has a go.mod; "" when none has.
func moduleRoot(dir string) string {
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			return ""
		}
		dir = up
	}
}

// sameLayout proves that both programs have every variable and function at the same place: sections
// have the same addresses and sizes, static data is equal, and code differs only in operands that
// point to read-only data (leaving symbols out reorders that).
func sameLayout(a, b string) error {
	fa, err := elf.Open(a)
	if err != nil {
		return err
	}
	defer fa.Close()
	fb, err := elf.Open(b)
	if err != nil {
		return err
	}
	defer fb.Close()
	for _, name := range []string{
		".text", ".rodata", ".data", ".bss", ".noptrdata", ".noptrbss", ".typelink",
		".itablink", ".go.module", ".gopclntab", ".go.type", ".go.func",
	} {
		x, y := fa.Section(name), fb.Section(name)
		if x == nil && y == nil {
			continue
		}
		if x == nil || y == nil || x.Addr != y.Addr || x.Size != y.Size {
			return fmt.Errorf("section %s lies elsewhere", name)
		}
		if !slices.Contains([]string{".text", ".go.module", ".noptrdata"}, name) {
			continue
		}
		dx, err := x.Data()
		if err != nil {
			return err
		}
		dy, err := y.Data()
		if err != nil {
			return err
		}
		if name != ".text" {
			if !bytes.Equal(dx, dy) {
				return fmt.Errorf("section %s differs", name)
			}
		} else if err := sameCode(dx, dy, x.Addr, readOnly(fa)); err != nil {
			return err
		}
	}
	return nil
}

// readOnly lists the sections that leaving symbols out reorders: types and closures have sections of
// their own from Go 1.27 on.
func readOnly(f *elf.File) (out []*elf.Section) {
	for _, name := range []string{".rodata", ".go.type", ".go.func"} {
		if s := f.Section(name); s != nil {
			out = append(out, s)
		}
	}
	return out
}

func sameCode(x, y []byte, addr uint64, readOnly []*elf.Section) error {
	points := func(code []byte, at int) bool { // a 32-bit displacement at this place would point to read-only data
		if at < 0 || at+4 > len(code) {
			return false
		}
		t := addr + uint64(at) + 4 + uint64(int64(int32(binary.LittleEndian.Uint32(code[at:]))))
		return slices.ContainsFunc(readOnly, func(s *elf.Section) bool { return t >= s.Addr && t < s.Addr+s.Size })
	}
next:
	for i := 0; i < len(x); i++ {
		if x[i] == y[i] {
			continue
		}
		for at := i; at > i-4; at-- {
			if points(x, at) && points(y, at) {
				i = at + 3
				continue next
			}
		}
		return fmt.Errorf("code differs at %#x", addr+uint64(i))
	}
	return nil
}
