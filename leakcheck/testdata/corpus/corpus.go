// Package corpus holds planted leaks and their clean twins. Each case plants one object that
// something keeps, says who keeps it, and can let go of it again.
package corpus

// Case is one planted leak.
type Case struct {
	Name string
	Kind string // the group in the confusion matrix
	// Plant makes an object, gives it to track and leaves it reachable until undo is called.
	// Nothing that it returns may keep the object.
	Plant func(track func(v any)) (undo func())
	Root  string // must occur in the path's first line: who keeps it
	Via   string // must occur in the path: the field, key, variable or closure that holds it
	Hint  string // must occur in the advice; "" when any will do
}

// Thing stands for an engine, a model runner, a request.
type Thing struct {
	Name string
	Data []byte
	next *Thing
	peer any
}

// Do is a method to make method values of.
func (t *Thing) Do() int { return len(t.Data) }

// Doer is implemented by *Thing.
type Doer interface{ Do() int }

//go:noinline
func thing(name string) *Thing { return &Thing{Name: name, Data: make([]byte, 4096)} }

// Cases lists all planted leaks.
func Cases() []Case {
	var all []Case
	for _, group := range [][]Case{globals, maps, closures, goroutines, timers, contexts, slicesAndChannels, cleanups, library, generics, more, siblings, others, engines, platform} {
		all = append(all, group...)
	}
	return all
}
