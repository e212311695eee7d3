package symbols

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"sort"
	"strings"
	"sync"
)

// Variable is a package-level variable, or a nameless static that the compiler made for a composite
// literal.
type Variable struct {
	Addr, Size uint64
	Name       string       // "github.com/acme/llm.kwCache"
	Type       reflect.Type // nil when it is not known, or the program has no descriptor of it
	die        dieOffset
}

// Names answers what a variable is called. Source says where the names come from:
//
//	dwarf              the program has debug information: go test -c, go test -o
//	symtab             it has a symbol table only
//	companion dwarf    it is stripped, as go test leaves it; the same test linked again has debug information, and was proven to have the same layout
//	code               none of these: a variable is "used by" the functions whose code mentions its address (amd64)
//	none               nothing is known but addresses
type Names struct {
	Source string
	Why    string // why there is nothing better; "" for dwarf

	globals []Variable
	debug   *debugInfo
	users   map[uint64][]string
}

// Load finds the best source of names, once per process: relinking takes 0.3 to 1 s.
var Load = sync.OnceValue(func() *Names {
	defer loaded.Store(true)
	return load(Sources{})
})

// Sources leaves sources of names out, for tests.
type Sources struct{ NoOwn, NoCompanion bool }

// LoadFrom is Load with a choice of sources, anew.
func LoadFrom(s Sources) *Names { return load(s) }

func load(s Sources) *Names {
	n := &Names{Source: "none"}
	self, err := os.Executable()
	if _, e := os.Stat("/proc/self/exe"); e == nil {
		self, err = "/proc/self/exe", nil // also right when the file was removed
	}
	if err != nil {
		n.Why = err.Error()
		return n
	}
	var errs []error
	if !s.NoOwn {
		if err := n.open(self, ""); err == nil {
			return n
		}
		errs = append(errs, errors.New("this binary is stripped"))
	}
	if !s.NoCompanion {
		path, err := prepared.take(self)
		if err == nil {
			defer os.RemoveAll(filepath.Dir(path))
			if err = n.open(path, "companion "); err == nil {
				return n
			}
		}
		errs = append(errs, fmt.Errorf("the same binary with symbols could not be made: %w", err))
	}
	if err := errors.Join(errs...); err != nil {
		n.Why = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	if n.users = codeUsers(); n.users != nil {
		n.Source = "code"
	}
	return n
}

// open reads names from an ELF file.
func (n *Names) open(path, prefix string) error {
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if f.Section(".debug_info") != nil {
		if n.debug, err = readDebug(f, prefix != ""); err == nil {
			n.globals, n.Source = n.debug.globals, prefix+"dwarf"
		}
	}
	syms, err := f.Symbols()
	if err != nil && n.debug == nil {
		return err
	}
	have := map[uint64]bool{}
	for _, v := range n.globals {
		have[v.Addr] = true
	}
	for _, s := range syms { // with debug information, this adds the nameless statics
		if elf.ST_TYPE(s.Info) == elf.STT_OBJECT && s.Size > 0 && !have[s.Value] {
			n.globals = append(n.globals, Variable{Addr: s.Value, Size: s.Size, Name: s.Name})
		}
	}
	if len(n.globals) == 0 {
		return errors.New("no symbols")
	}
	if n.debug == nil {
		n.Source = prefix + "symtab"
	}
	sort.Slice(n.globals, func(i, j int) bool { return n.globals[i].Addr < n.globals[j].Addr })
	return nil
}

// stripped reports whether a program has no symbols.
func stripped(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return f.Section(".symtab") == nil && f.Section(".debug_info") == nil
}

// Types reports whether the names come with types: then every variable is known.
func (n *Names) Types() bool { return n.debug != nil }

// Global returns the variable that addr lies in.
func (n *Names) Global(addr uint64) (Variable, bool) {
	i := sort.Search(len(n.globals), func(i int) bool { return n.globals[i].Addr > addr }) - 1
	for ; i >= 0; i-- {
		v := n.globals[i]
		if addr < v.Addr+v.Size {
			return v, true
		}
		if v.Size > 0 {
			break
		}
	}
	return Variable{}, false
}

// UsedBy returns the functions whose code mentions the variable that addr lies in, and the address
// that it mentions; nil when there is none near. Only names of Source "code" have it.
func (n *Names) UsedBy(addr uint64) (funcs []string, base uint64) {
	for d := uint64(0); d <= 256 && d <= addr; d += 8 {
		if f := n.users[addr-d]; len(f) > 0 {
			return f, addr - d
		}
	}
	return nil, 0
}
