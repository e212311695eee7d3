//go:build cgo

package corpus

import "runtime/cgo"

var cgoCases = []Case{
	{Name: "cgo.Handle that was not deleted", Kind: "unsafe", Root: "runtime/cgo.handles", Via: "]  *corpus.Thing", Hint: "call Delete in Close",
		Plant: func(track func(any)) func() {
			t := thing("handle")
			h := cgo.NewHandle(t)
			track(t)
			return h.Delete
		}},
}
