//go:build !go1.27

package symbols

import "reflect"

// moduledata mirrors the head of runtime.moduledata (Go 1.24 to 1.26).
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
	types, etypes         uintptr
}

// Layout reads the layout of a map type (internal/abi.MapType).
func Layout(m reflect.Type) MapLayout {
	const control = 8
	a := Descriptor(m)
	flags, slot := read32(a+104), read64(a+88)
	return MapLayout{
		GroupSize: read64(a + 80), keys: control, elems: control + read64(a+96), keyStride: slot, elemStride: slot,
		IndirectKey: flags&4 != 0, IndirectElem: flags&8 != 0,
	}
}
