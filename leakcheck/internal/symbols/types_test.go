package symbols

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type onlyEmbedded struct{ Next *onlyEmbedded }

var table map[string]struct{ it onlyEmbedded }

func TestTypes(t *testing.T) {
	require.True(t, Sane())
	types := LoadTypes()
	assert.Greater(t, len(types.All), 500)
	m := reflect.TypeOf(table)
	group := typeAt(read64(Descriptor(m) + 64))
	assert.Equal(t, m, types.MapOf(group))
	key, elem, inKey, ok := Layout(m).Entry(8) // the first word after the control word
	assert.Equal(t, []any{uint64(8), true, true}, []any{key, inKey, ok})
	same, _, inKey, ok := Layout(m).Entry(elem)
	assert.Equal(t, []any{key, false, true}, []any{same, inKey, ok})
	_, _, _, ok = Layout(m).Entry(0)
	assert.False(t, ok, "the control word")
	assert.NotNil(t, types.Named("reflect.rtype"))
	for _, typ := range types.All {
		assert.Equal(t, typ, types.At(Descriptor(typ)))
		_ = typ.String() // each can be printed: none is a wrong guess of the scan
	}
}

func TestFuncAt(t *testing.T) {
	x := len(t.Name())
	f := func() int { return x }
	code := read64(uint64(reflect.ValueOf(&f).Elem().UnsafeAddr()))
	assert.Contains(t, FuncAt(read64(code)), "TestFuncAt.func1")
	assert.Empty(t, FuncAt(read64(code)+1))
	_ = f()
}
