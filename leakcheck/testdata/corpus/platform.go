package corpus

import (
	"runtime"
	"syscall"
	"unsafe"
)

var (
	pinner runtime.Pinner
	slots  []unsafe.Pointer
)

type deviceBuffer struct {
	mapped []byte
	owner  *Thing
}

var deviceBuffers []*deviceBuffer

var platform = append([]Case{
	{Name: "runtime.Pinner that was not unpinned", Kind: "unsafe", Root: "corpus.pinner", Via: ".ref", Hint: "Unpin",
		Plant: func(track func(any)) func() {
			t := thing("pinned")
			pinner.Pin(t)
			track(t)
			return func() { pinner.Unpin() }
		}},
	{Name: "slice of unsafe.Pointer", Kind: "unsafe", Root: "corpus.slots", Via: "[1]",
		Plant: func(track func(any)) func() {
			t := thing("slot")
			slots = []unsafe.Pointer{nil, unsafe.Pointer(t)}
			track(t)
			return func() { slots = nil }
		}},
	{Name: "wrapper of memory outside the heap", Kind: "unsafe", Root: "corpus.deviceBuffers", Via: ".owner",
		Plant: func(track func(any)) func() {
			b, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
			if err != nil {
				panic(err)
			}
			d := &deviceBuffer{b, thing("owner")}
			deviceBuffers = append(deviceBuffers, d)
			track(d.owner)
			return func() { syscall.Munmap(b); deviceBuffers = nil }
		}},
}, cgoCases...)
