package corpus

import "runtime"

type owner struct {
	name  string
	child *owned
}

type owned struct{ parent *owner }

var cleanups = []Case{
	{Name: "finalizer in a cycle", Kind: "finalizer", Root: "finalizer", Via: ".child", Hint: "finalizer",
		Plant: func(track func(any)) func() {
			o := &owner{name: "fin"}
			o.child = &owned{o}
			runtime.SetFinalizer(o, func(o *owner) { o.name = "done" })
			track(o)
			undo := handle(o.child)
			return func() { runtime.SetFinalizer(undo().parent, nil) }
		}},
	{Name: "finalizer's closure", Kind: "finalizer", Root: "finalizer", Via: "captured other",
		Plant: func(track func(any)) func() {
			o, other := &owner{name: "fin"}, thing("captured")
			runtime.SetFinalizer(o, func(*owner) { other.Do() })
			track(other)
			heldOwner = o
			return func() { runtime.SetFinalizer(heldOwner, nil); heldOwner = nil }
		}},
	{Name: "cleanup's argument", Kind: "cleanup", Root: "cleanup", Via: ".parent", Hint: "reaches the object",
		Plant: func(track func(any)) func() {
			o := &owner{name: "arg"}
			o.child = &owned{o}
			c := runtime.AddCleanup(o, func(c *owned) { c.parent = nil }, o.child)
			track(o)
			return c.Stop
		}},
	{Name: "cleanup's closure", Kind: "cleanup", Root: "cleanup", Via: "captured", Hint: "reaches the object",
		Plant: func(track func(any)) func() {
			o := &owner{name: "closure"}
			o.child = &owned{o}
			child := o.child
			c := runtime.AddCleanup(o, func(int) { child.parent = nil }, 3)
			track(o)
			return c.Stop
		}},
	{Name: "cleanup of something that lives", Kind: "cleanup", Root: "cleanup", Via: "argument  *corpus.Thing", Hint: "until the object that it is attached to is gone",
		Plant: func(track func(any)) func() {
			t := thing("argument")
			heldOwner = &owner{name: "alive"}
			c := runtime.AddCleanup(heldOwner, func(t *Thing) { t.Do() }, t)
			track(t)
			return func() { c.Stop(); heldOwner = nil }
		}},
}

var heldOwner *owner
