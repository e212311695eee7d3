// Package llm stands for somebody else's package: its path has dots, which the linker spells %2e.
package llm

type cache struct{ byName map[string]any }

var global = cache{byName: map[string]any{}}

// Keep stores v.
func Keep(name string, v any) { global.byName[name] = v }

// Forget empties the cache.
func Forget() { clear(global.byName) }
