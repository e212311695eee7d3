package retain

import (
	"reflect"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type link struct {
	next *link
	_    [4]uint64
}

var chain *link

// TestStands: a path from a variable stands until one of its pointers is changed.
func TestStands(t *testing.T) {
	first, second, end := &link{}, &link{}, &link{}
	whole := func() { chain, first.next, second.next = first, second, end }
	whole()
	defer func() { chain = nil }()
	target := Target{Addr: uint64(uintptr(unsafe.Pointer(end))), Type: reflect.TypeOf(end)}
	require.NoError(t, withDump(Options{}, func(x *explainer) {
		paths := x.explain([]Target{target})
		require.Len(t, paths[0].Steps, 4, "%+v", paths[0])
		assert.True(t, paths[0].Stands)
		objects, id, ok := x.search.Path(x.d.Find(target.Addr))
		require.True(t, ok)
		slots := x.slots(objects)
		stands := func() bool { return x.stands(x.roots[id], objects, slots) }
		for name, cut := range map[string]func(){
			"the root": func() { chain = &link{next: first.next} },
			"a link":   func() { second.next = nil },
			"a detour": func() { first.next = &link{next: second} },
			"the end":  func() { second.next = &link{} },
		} {
			cut()
			assert.False(t, stands(), name)
			whole()
			assert.True(t, stands(), "put together after %s was changed", name)
		}
	}))
}
