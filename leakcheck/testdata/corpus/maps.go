package corpus

import "strconv"

type lruKey struct {
	fn  *func() int
	arg int
}

type fat struct {
	pad [200]byte
	req *Thing
}

type fatKey struct {
	pad [200]byte
	req *Thing
}

type pair struct{ a, b any }

var (
	byName      = map[string]*Thing{}
	kwCache     = map[string]func() int{}
	lru         = map[lruKey]int{}
	mapOfMaps   = map[string]map[int]*Thing{}
	bigMap      = map[int]*Thing{}
	indirectMap = map[int]fat{}
	indirectKey = map[fatKey]bool{}
	anyKeyed    = map[any]int{}
	pointerKey  = map[*Thing]struct{}{}
	sliceValues = map[string][]*Thing{}
	ifaceValues = map[int]any{}
	pairs       = map[pair]bool{}
	hookTables  = map[string]map[int][]struct{ f func() }{}
	doers       = map[Doer]string{}
)

var maps = []Case{
	{Name: "map value", Kind: "map", Root: "corpus.byName", Via: `["b"]`,
		Plant: func(track func(any)) func() {
			byName["a"], byName["b"] = thing("a"), thing("b")
			track(byName["b"])
			return func() { clear(byName) }
		}},
	{Name: "method value as a map value", Kind: "method value", Root: "corpus.kwCache", Via: "method value corpus.(*Thing).Do-fm", Hint: "method value keeps its receiver",
		Plant: func(track func(any)) func() {
			t := thing("runner")
			kwCache["forward/fp16"] = t.Do
			track(t)
			return func() { clear(kwCache) }
		}},
	{Name: "method value behind the key of a large map", Kind: "method value", Root: "corpus.lru", Via: "method value corpus.(*Thing).Do-fm", Hint: "cache keyed by a method value",
		Plant: func(track func(any)) func() {
			for i := range 1000 {
				t := thing("runner")
				f := t.Do
				lru[lruKey{&f, i}] = i
				if i == 500 {
					track(t)
				}
			}
			return func() { clear(lru) }
		}},
	{Name: "map of maps", Kind: "map", Root: "corpus.mapOfMaps", Via: `["inner"][7]`,
		Plant: func(track func(any)) func() {
			mapOfMaps["inner"] = map[int]*Thing{7: thing("m")}
			track(mapOfMaps["inner"][7])
			return func() { clear(mapOfMaps) }
		}},
	{Name: "map of many tables", Kind: "map", Root: "corpus.bigMap", Via: "[7777]",
		Plant: func(track func(any)) func() {
			for i := range 10000 {
				bigMap[i] = &Thing{}
			}
			bigMap[7777] = thing("big")
			track(bigMap[7777])
			return func() { bigMap = map[int]*Thing{} }
		}},
	{Name: "map with large elements", Kind: "map", Root: "corpus.indirectMap", Via: ".req",
		Plant: func(track func(any)) func() {
			t := thing("fat")
			indirectMap[3] = fat{req: t}
			track(t)
			return func() { clear(indirectMap) }
		}},
	{Name: "map with large keys", Kind: "map", Root: "corpus.indirectKey", Via: ".req",
		Plant: func(track func(any)) func() {
			t := thing("fat")
			indirectKey[fatKey{req: t}] = true
			track(t)
			return func() { clear(indirectKey) }
		}},
	{Name: "interface as a map key", Kind: "map", Root: "corpus.anyKeyed", Via: "key",
		Plant: func(track func(any)) func() {
			t := thing("key")
			anyKeyed[t] = 1
			track(t)
			return func() { clear(anyKeyed) }
		}},
	{Name: "pointer as a map key", Kind: "map", Root: "corpus.pointerKey", Via: "key",
		Plant: func(track func(any)) func() {
			for range 30 {
				pointerKey[thing("other")] = struct{}{}
			}
			t := thing("key")
			pointerKey[t] = struct{}{}
			track(t)
			return func() { clear(pointerKey) }
		}},
	{Name: "slice as a map value", Kind: "map", Root: "corpus.sliceValues", Via: `["s"][4]`,
		Plant: func(track func(any)) func() {
			for range 6 {
				sliceValues["s"] = append(sliceValues["s"], thing("s"))
			}
			track(sliceValues["s"][4])
			return func() { clear(sliceValues) }
		}},
	{Name: "struct in an interface as a map value", Kind: "map", Root: "corpus.ifaceValues", Via: ".req",
		Plant: func(track func(any)) func() {
			t := thing("v")
			for i := range 20 {
				ifaceValues[i] = strconv.Itoa(i)
			}
			ifaceValues[21] = &entry{"v", t}
			track(t)
			return func() { clear(ifaceValues) }
		}},
	{Name: "interfaces in a struct key", Kind: "map", Root: "corpus.pairs", Via: "key.b",
		Plant: func(track func(any)) func() {
			t := thing("pair")
			pairs[pair{1, t}] = true
			track(t)
			return func() { clear(pairs) }
		}},
	{Name: "interface with methods as a map key", Kind: "map", Root: "corpus.doers", Via: "key",
		Plant: func(track func(any)) func() {
			t := thing("doer")
			doers[t] = "x"
			track(t)
			return func() { clear(doers) }
		}},
	{Name: "unexported fields of a nameless struct", Kind: "map", Root: "corpus.hookTables", Via: `["a"][3][1].f`,
		Plant: func(track func(any)) func() {
			t := thing("hook")
			hookTables["a"] = map[int][]struct{ f func() }{3: {{nil}, {func() { t.Do() }}}}
			track(t)
			return func() { clear(hookTables) }
		}},
}
