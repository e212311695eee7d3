// Package llm stands for somebody else's package: its path has dots, which the linker spells %2e.
package llm

type cache struct{ byName map[string]any }

var global = cache{byName: map[string]any{}}

// Keep stores v.
func Keep(name string, v any) { global.byName[name] = v }

// Forget empties the cache.
func Forget() { clear(global.byName) }

type slot struct{ v any }

var slots struct {
	byName map[string][]struct{ s *slot }
}

// Append stores v in a slot.
func Append(name string, v any) {
	if slots.byName == nil {
		slots.byName = map[string][]struct{ s *slot }{}
	}
	slots.byName[name] = append(slots.byName[name], struct{ s *slot }{&slot{v}})
}

// Drop empties the slots.
func Drop() { clear(slots.byName) }
