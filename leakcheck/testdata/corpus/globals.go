package corpus

import (
	"container/list"
	"container/ring"
	"sync/atomic"
	"unsafe"

	"github.com/enginetest/enginetest/leakcheck/testdata/corpus/third.party/llm.v2"
)

type entry struct {
	name string
	req  *Thing
}

type registry struct {
	count   int
	entries []entry
}

type base struct{ model *Thing }

type derived struct {
	base
	id int
}

type viaPointer struct {
	id int
	*base
}

type deep struct {
	rows [4]struct {
		tag   string
		cells map[int][]entry
	}
}

var (
	plainGlobal   *Thing
	ifaceGlobal   any
	doerGlobal    Doer
	arrayGlobal   [5]*Thing
	structGlobal  derived
	embedded      = &viaPointer{base: &base{}}
	staticReg     = &registry{}
	valueReg      registry
	atomicGlobal  atomic.Pointer[Thing]
	atomicValue   atomic.Value
	unsafeGlobal  unsafe.Pointer
	listGlobal    = list.New()
	ringGlobal    *ring.Ring
	chain         *Thing
	deepGlobal    *deep
	boxedStruct   any
	pointerToPtr  **Thing
	anonymous     struct{ inner struct{ held *Thing } }
	interfaceList []any
	replaced      = &registry{}
)

var globals = []Case{
	{Name: "global pointer", Kind: "global", Root: "corpus.plainGlobal", Via: "*corpus.Thing", Hint: "package-level variable",
		Plant: func(track func(any)) func() {
			plainGlobal = thing("a")
			track(plainGlobal)
			return func() { plainGlobal = nil }
		}},
	{Name: "global interface", Kind: "global", Root: "corpus.ifaceGlobal", Via: "*corpus.Thing",
		Plant: func(track func(any)) func() {
			t := thing("a")
			ifaceGlobal = t
			track(t)
			return func() { ifaceGlobal = nil }
		}},
	{Name: "global interface with methods", Kind: "global", Root: "corpus.doerGlobal", Via: "*corpus.Thing",
		Plant: func(track func(any)) func() {
			t := thing("a")
			doerGlobal = t
			track(t)
			return func() { doerGlobal = nil }
		}},
	{Name: "global array", Kind: "global", Root: "corpus.arrayGlobal", Via: "[3]",
		Plant: func(track func(any)) func() {
			arrayGlobal[3] = thing("a")
			track(arrayGlobal[3])
			return func() { arrayGlobal[3] = nil }
		}},
	{Name: "field of an embedded struct", Kind: "global", Root: "corpus.structGlobal", Via: ".model",
		Plant: func(track func(any)) func() {
			structGlobal.model = thing("a")
			track(structGlobal.model)
			return func() { structGlobal.model = nil }
		}},
	{Name: "field behind an embedded pointer", Kind: "global", Root: "corpus.embedded", Via: ".model",
		Plant: func(track func(any)) func() {
			embedded.model = thing("a")
			track(embedded.model)
			return func() { embedded.model = nil }
		}},
	{Name: "registry behind a static pointer", Kind: "registry", Root: "corpus.staticReg", Via: ".entries[17].req",
		Plant: func(track func(any)) func() {
			for range 40 {
				staticReg.entries = append(staticReg.entries, entry{"e", thing("r")})
			}
			track(staticReg.entries[17].req)
			return func() { staticReg.entries = nil }
		}},
	{Name: "what a variable was initialised with, after it was replaced", Kind: "registry", Root: "no variable points to it", Via: "*corpus.Thing", Hint: "never freed",
		Plant: func(track func(any)) func() {
			t, first := thing("r"), replaced
			first.entries = []entry{{"e", t}}
			replaced = &registry{}
			track(t)
			return func() { first.entries = nil; replaced = first }
		}},
	{Name: "registry variable, object behind an entry", Kind: "registry", Root: "corpus.valueReg", Via: ".entries[2].req",
		Plant: func(track func(any)) func() {
			for range 4 {
				valueReg.entries = append(valueReg.entries, entry{"e", thing("r")})
			}
			t := thing("behind")
			valueReg.entries[2].req.next = t
			track(t)
			return func() { valueReg.entries = nil }
		}},
	{Name: "atomic.Pointer", Kind: "global", Root: "corpus.atomicGlobal", Via: "*corpus.Thing",
		Plant: func(track func(any)) func() {
			t := thing("a")
			atomicGlobal.Store(t)
			track(t)
			return func() { atomicGlobal.Store(nil) }
		}},
	{Name: "atomic.Value", Kind: "global", Root: "corpus.atomicValue", Via: "*corpus.Thing",
		Plant: func(track func(any)) func() {
			t := thing("a")
			atomicValue.Store(t)
			track(t)
			return func() { atomicValue.Store((*Thing)(nil)) }
		}},
	{Name: "unsafe.Pointer", Kind: "global", Root: "corpus.unsafeGlobal", Via: "*corpus.Thing",
		Plant: func(track func(any)) func() {
			t := thing("a")
			unsafeGlobal = unsafe.Pointer(t)
			track(t)
			return func() { unsafeGlobal = nil }
		}},
	{Name: "container/list", Kind: "registry", Root: "corpus.listGlobal", Via: "list.Element",
		Plant: func(track func(any)) func() {
			for range 9 {
				listGlobal.PushBack(thing("l"))
			}
			track(listGlobal.Front().Next().Next().Value)
			return func() { listGlobal.Init() }
		}},
	{Name: "container/ring", Kind: "registry", Root: "corpus.ringGlobal", Via: ".Value",
		Plant: func(track func(any)) func() {
			ringGlobal = ring.New(4)
			t := thing("r")
			ringGlobal.Next().Next().Value = t
			track(t)
			return func() { ringGlobal = nil }
		}},
	{Name: "far down a linked list", Kind: "registry", Root: "corpus.chain", Via: ".next",
		Plant: func(track func(any)) func() {
			for range 3000 {
				chain = &Thing{next: chain}
			}
			at := chain
			for range 1500 {
				at = at.next
			}
			t := thing("deep")
			at.peer = t
			track(t)
			return func() { chain = nil }
		}},
	{Name: "array of structs of maps of slices", Kind: "registry", Root: "corpus.deepGlobal", Via: ".rows[2].cells[7][1].req",
		Plant: func(track func(any)) func() {
			deepGlobal = &deep{}
			t := thing("d")
			deepGlobal.rows[2].cells = map[int][]entry{1: nil, 7: {{"x", nil}, {"y", t}}}
			track(t)
			return func() { deepGlobal = nil }
		}},
	{Name: "struct in an interface", Kind: "global", Root: "corpus.boxedStruct", Via: ".req",
		Plant: func(track func(any)) func() {
			t := thing("b")
			boxedStruct = entry{"boxed", t}
			track(t)
			return func() { boxedStruct = nil }
		}},
	{Name: "pointer to a pointer", Kind: "global", Root: "corpus.pointerToPtr", Via: "*corpus.Thing",
		Plant: func(track func(any)) func() {
			t := thing("p")
			pointerToPtr = &t
			track(t)
			return func() { pointerToPtr = nil }
		}},
	{Name: "anonymous struct", Kind: "global", Root: "corpus.anonymous", Via: ".inner.held",
		Plant: func(track func(any)) func() {
			anonymous.inner.held = thing("a")
			track(anonymous.inner.held)
			return func() { anonymous.inner.held = nil }
		}},
	{Name: "slice of interfaces", Kind: "registry", Root: "corpus.interfaceList", Via: "[2]",
		Plant: func(track func(any)) func() {
			t := thing("i")
			interfaceList = []any{1, "two", entry{"three", t}}
			track(t)
			return func() { interfaceList = nil }
		}},
	{Name: "cache of another module", Kind: "registry", Root: "llm", Via: "weights",
		Plant: func(track func(any)) func() {
			t := thing("w")
			llm.Keep("weights", t)
			track(t)
			return llm.Forget
		}},
	{Name: "nameless struct of another module", Kind: "registry", Root: "llm.v2.slots", Via: `.byName["weights"][0].s`,
		Plant: func(track func(any)) func() {
			t := thing("w")
			llm.Append("weights", t)
			track(t)
			return llm.Drop
		}},
}
