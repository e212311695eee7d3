//go:build go1.27

package symbols

import "reflect"

// moduledata mirrors the head of runtime.moduledata (Go 1.27).
//
//nolint:unused // fields that are not read give the others their places
type moduledata struct {
	_                     uintptr       // pcHeader
	_                     [5][3]uintptr // funcnametab, cutab, filetab, pctab, pclntable
	_                     [3]uintptr    // ftab
	_                     [3]uintptr    // findfunctab, minpc, maxpc
	text, etext           uintptr
	noptrdata, enoptrdata uintptr
	data, edata           uintptr
	bss, ebss             uintptr
	noptrbss, enoptrbss   uintptr
	_                     [5]uintptr // covctrs, ecovctrs, end, gcdata, gcbss
	types, _, etypes      uintptr    // the length of the descriptors is between them
}

// Layout reads the layout of a map type (internal/abi.MapType).
func Layout(m reflect.Type) MapLayout {
	a := Descriptor(m)
	flags := read32(a + 128)
	return MapLayout{
		GroupSize: read64(a + 80), keys: read64(a + 88), keyStride: read64(a + 96), elems: read64(a + 104),
		elemStride: read64(a + 112), IndirectKey: flags&4 != 0, IndirectElem: flags&8 != 0,
	}
}
