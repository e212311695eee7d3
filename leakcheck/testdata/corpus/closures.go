package corpus

import "sync"

type hooks struct{ onClose []func() }

var (
	hook        func() int
	hookList    hooks
	nested      func() func() int
	ifaceMethod func() int
	onceValue   func() int
	byValueFn   func() int
	fnStruct    struct{ fn func(int) int }
)

type valueThing struct{ t *Thing }

func (v valueThing) Do() int { return v.t.Do() }

var closures = []Case{
	{Name: "closure in a variable", Kind: "closure", Root: "corpus.hook", Via: "captured t",
		Plant: func(track func(any)) func() {
			t := thing("c")
			hook = func() int { return t.Do() }
			track(t)
			return func() { hook = nil }
		}},
	{Name: "list of callbacks", Kind: "method value", Root: "corpus.hookList", Via: ".onClose[1]",
		Plant: func(track func(any)) func() {
			t := thing("c")
			hookList.onClose = append(hookList.onClose, func() {}, func() { t.Do() })
			track(t)
			return func() { hookList.onClose = nil }
		}},
	{Name: "closure in a closure", Kind: "closure", Root: "corpus.nested", Via: "captured inner",
		Plant: func(track func(any)) func() {
			t := thing("c")
			inner := func() int { return t.Do() }
			nested = func() func() int { return inner }
			track(t)
			return func() { nested = nil }
		}},
	{Name: "captured by reference", Kind: "closure", Root: "corpus.fnStruct", Via: "captured t",
		Plant: func(track func(any)) func() {
			t := thing("c")
			fnStruct.fn = func(i int) int {
				if i < 0 {
					t = nil
				}
				return t.Do()
			}
			track(t)
			return func() { fnStruct.fn = nil }
		}},
	{Name: "method value of an interface", Kind: "method value", Root: "corpus.ifaceMethod", Via: "method value corpus.Doer.Do-fm", Hint: "method value",
		Plant: func(track func(any)) func() {
			var d Doer = thing("c")
			ifaceMethod = d.Do
			track(d)
			return func() { ifaceMethod = nil }
		}},
	{Name: "method value of a struct", Kind: "method value", Root: "corpus.byValueFn", Via: "receiver.t", Hint: "method value",
		Plant: func(track func(any)) func() {
			v := valueThing{thing("c")}
			byValueFn = v.Do
			track(v.t)
			return func() { byValueFn = nil }
		}},
	{Name: "sync.OnceValue before its call", Kind: "closure", Root: "corpus.onceValue", Via: "captured t",
		Plant: func(track func(any)) func() {
			t := thing("once")
			onceValue = sync.OnceValue(func() int { return t.Do() })
			track(t)
			return func() { onceValue = nil }
		}},
}
