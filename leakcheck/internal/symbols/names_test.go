package symbols

import (
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var registry = map[string][]*onlyEmbedded{}

func varAddr[T any](p *T) uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

// TestNames: each source of names finds the variable or, without any, the functions that use it.
func TestNames(t *testing.T) {
	registry["a"] = nil
	at := varAddr(&registry)
	n := LoadFrom(Sources{})
	require.Contains(t, n.Source, "dwarf", n.Why)
	v, ok := n.Global(at)
	require.True(t, ok)
	assert.Equal(t, "github.com/enginetest/enginetest/leakcheck/internal/symbols.registry", v.Name)
	require.NotNil(t, v.Type)
	assert.Equal(t, "map[string][]*symbols.onlyEmbedded", v.Type.String())

	n = LoadFrom(Sources{NoOwn: true, NoCompanion: true})
	require.Equal(t, "code", n.Source)
	users, base := n.UsedBy(at)
	assert.Equal(t, at, base)
	assert.Contains(t, users, "github.com/enginetest/enginetest/leakcheck/internal/symbols.TestNames")
}

// TestWrongCompanion: another program is never taken for this one.
func TestWrongCompanion(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	assert.NoError(t, sameLayout(self, self))
	assert.Error(t, sameLayout(self, "/bin/true"))
}
