// Package gotest reads and runs go test commands.
package gotest

import (
	"path/filepath"
	"slices"
	"strings"
)

// Command is a parsed test command.
type Command struct {
	Args     []string // all of it
	Go       bool     // it is "go test"; otherwise a program of its own
	before   []string // "go", "-C", "dir", "test"
	flags    []string
	Packages []string // "." when none is named
	binary   []string // -args and what follows
}

// valued are go test's flags that take the next argument when they have no "=".
var valued = strings.Fields(`C args asmflags bench benchtime blockprofile blockprofilerate buildmode compiler count covermode coverpkg
	coverprofile cpu cpuprofile exec fuzz fuzzminimizetime fuzztime gccgoflags gcflags installsuffix ldflags list memprofile memprofilerate
	mod modfile mutexprofile mutexprofilefraction o outputdir overlay p parallel pgo pkgdir run shuffle skip tags timeout toolexec trace vet`)

// Parse reads a command line.
func Parse(args []string) Command {
	c := Command{Args: args}
	at := slices.Index(args, "test")
	if len(args) == 0 || strings.TrimSuffix(filepath.Base(args[0]), ".exe") != "go" || at < 0 {
		return c
	}
	c.Go, c.before = true, args[:at+1]
	rest := args[at+1:]
	for i := 0; i < len(rest); i++ {
		name, _, joined := strings.Cut(strings.TrimLeft(rest[i], "-"), "=")
		switch {
		case rest[i] == "-args" || rest[i] == "--args":
			c.binary = rest[i:]
			i = len(rest)
		case !strings.HasPrefix(rest[i], "-"):
			c.Packages = append(c.Packages, rest[i])
		case slices.Contains(valued, strings.TrimPrefix(name, "test.")) && !joined && i+1 < len(rest):
			c.flags = append(c.flags, rest[i], rest[i+1])
			i++
		default:
			c.flags = append(c.flags, rest[i])
		}
	}
	if c.Packages == nil {
		c.Packages = []string{"."}
	}
	return c
}

// JSON returns the command with -json, over packages; nil leaves the packages as they are. extra
// are further flags.
func (c Command) JSON(packages []string, extra ...string) []string {
	if !c.Go {
		return c.Args
	}
	if packages == nil {
		packages = c.Packages
	}
	words := append(slices.Clone(c.before), "-json")
	words = append(words, without(c.flags, "json")...)
	words = append(words, extra...)
	return append(append(words, packages...), c.binary...)
}

// Retry returns the command that runs one test again, with the flags of this one.
func (c Command) Retry(pkg string, selection ...string) []string {
	r := c
	r.flags = without(c.flags, "run", "skip", "count", "bench", "shuffle", "coverprofile", "json")
	return r.JSON([]string{pkg}, append(selection, "-count=1")...)
}

// Flag returns the value of a flag, "" when it is not there.
func (c Command) Flag(want string) (value string) {
	for i, f := range c.flags {
		name, v, joined := strings.Cut(strings.TrimLeft(f, "-"), "=")
		if !strings.HasPrefix(f, "-") || name != want {
			continue
		}
		if !joined && i+1 < len(c.flags) {
			v = c.flags[i+1]
		}
		value = v
	}
	return value
}

// List returns the go list command that resolves the packages with the same build flags.
func (c Command) List(format string) []string {
	words := append(slices.Clone(c.before[:len(c.before)-1]), "list")
	for _, name := range []string{"tags", "mod", "modfile", "overlay"} {
		if v := c.Flag(name); v != "" {
			words = append(words, "-"+name+"="+v)
		}
	}
	return append(append(words, "-f", format), c.Packages...)
}

// without returns flags without some.
func without(flags []string, names ...string) (kept []string) {
	for i := 0; i < len(flags); i++ {
		name, _, joined := strings.Cut(strings.TrimLeft(flags[i], "-"), "=")
		drop := slices.Contains(names, name)
		if !drop {
			kept = append(kept, flags[i])
		}
		if slices.Contains(valued, name) && !joined && i+1 < len(flags) {
			i++
			if !drop {
				kept = append(kept, flags[i])
			}
		}
	}
	return kept
}
