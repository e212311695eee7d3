package engines

import (
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"

	"github.com/enginetest/enginetest/ledger"
)

type thing struct{ Name [64]byte }

func TestOnlyUnmanagedAndOpenEnginesAreForgotten(t *testing.T) {
	before := time.Now()
	books := ledger.New(false)
	books.Add(ledger.Holding{Device: "GPU-1", Bytes: 5})
	books.Add(ledger.Holding{Device: "cpu:0", Bytes: 2})
	h := Open(Entry{Place: Place(), Holdings: books.Books().Holdings})
	x := new(thing)
	h.Own(x)

	list := Forgotten(before)
	assert.Len(t, list, 1)
	assert.Equal(t, "engine opened at engines_test.go:21, never shut down", list[0].String())
	assert.EqualValues(t, 5, list[0].On("GPU-1"))
	assert.EqualValues(t, 7, list[0].Bytes())
	assert.Empty(t, Forgotten(time.Now()), "it was there before")

	assert.Nil(t, Manage(new(thing)), "another engine")
	assert.Nil(t, Manage(thing{}), "a value has no identity")
	assert.Same(t, h, Manage(x))
	assert.Empty(t, Forgotten(before), "a fixture sees to its end")
	h.Manage(false)
	assert.Len(t, Forgotten(before), 1)
	h.Close()
	h.Close()
	h.Own(x)
	assert.Empty(t, Forgotten(before))
	(*Handle)(nil).Close()
}

func TestAnEntryKeepsNoEngineAlive(t *testing.T) {
	x := new(thing)
	w := weak.Make(x)
	h := Open(Entry{})
	defer h.Close()
	h.Own(x)
	runtime.KeepAlive(x)
	runtime.GC()
	assert.Nil(t, w.Value())
}
