package corpus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"text/template"
)

type item struct {
	id int
	t  *Thing
}

type carried[T any] struct{ v T }

func (carried[T]) Error() string { return "carried" }

var (
	parts      []string
	atomicMap  atomic.Pointer[map[string]*Thing]
	structured atomic.Pointer[slog.Logger]
	sequence   func(func(int) bool)
	page       *template.Template
	lanes      [4]chan item
	failed     context.Context
	wrapped    error
	byPair     = map[struct {
		name string
		t    *Thing
	}]int{}
	wrapper struct {
		Doer
		n int
	}
	factories = map[string]func() func() int{}
)

var more = []Case{
	{Name: "part of a string", Kind: "sub-slice", Root: "corpus.parts", Via: "keeps its whole array", Hint: "strings.Clone",
		Plant: func(track func(any)) func() {
			s := strings.Repeat("x", 1<<16)
			parts = append(parts, s[100:110])
			track(s)
			return func() { parts = nil }
		}},
	{Name: "map behind an atomic.Pointer", Kind: "map", Root: "corpus.atomicMap", Via: `["k"]`,
		Plant: func(track func(any)) func() {
			t := thing("a")
			atomicMap.Store(&map[string]*Thing{"k": t})
			track(t)
			return func() { atomicMap.Store(nil) }
		}},
	{Name: "iterator function", Kind: "closure", Root: "corpus.sequence", Via: "captured t",
		Plant: func(track func(any)) func() {
			t := thing("a")
			sequence = func(yield func(int) bool) { yield(t.Do()) }
			track(t)
			return func() { sequence = nil }
		}},
	{Name: "function of a template", Kind: "library", Root: "corpus.page", Via: "method value corpus.(*Thing).Do-fm",
		Plant: func(track func(any)) func() {
			t := thing("a")
			page = template.New("page").Funcs(template.FuncMap{"do": t.Do})
			track(t)
			return func() { page = nil }
		}},
	{Name: "option of a logger", Kind: "library", Root: "corpus.structured", Via: "captured t",
		Plant: func(track func(any)) func() {
			t := thing("a")
			structured.Store(slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				t.Do()
				return a
			}})))
			track(t)
			return func() { structured.Store(nil) }
		}},
	{Name: "struct in a channel of an array", Kind: "channel", Root: "corpus.lanes", Via: "buffered[1].t",
		Plant: func(track func(any)) func() {
			t := thing("a")
			lanes[2] = make(chan item, 3)
			lanes[2] <- item{1, nil}
			lanes[2] <- item{2, t}
			track(t)
			return func() { lanes[2] = nil }
		}},
	{Name: "cause of a context", Kind: "context", Root: "corpus.failed", Via: ".cause",
		Plant: func(track func(any)) func() {
			t := thing("a")
			ctx, cancel := context.WithCancelCause(context.Background())
			cancel(carried[*Thing]{t})
			failed = ctx
			track(t)
			return func() { failed = nil }
		}},
	{Name: "generic error in a wrapped one", Kind: "error", Root: "corpus.wrapped", Via: "carried", Hint: "an error keeps",
		Plant: func(track func(any)) func() {
			t := thing("a")
			wrapped = errors.Join(fmt.Errorf("request: %w", carried[item]{item{1, t}}))
			track(t)
			return func() { wrapped = nil }
		}},
	{Name: "anonymous struct as a key", Kind: "map", Root: "corpus.byPair", Via: "key.t",
		Plant: func(track func(any)) func() {
			t := thing("a")
			byPair[struct {
				name string
				t    *Thing
			}{"n", t}] = 1
			track(t)
			return func() { clear(byPair) }
		}},
	{Name: "embedded interface", Kind: "global", Root: "corpus.wrapper", Via: ".Doer",
		Plant: func(track func(any)) func() {
			t := thing("a")
			wrapper.Doer = t
			track(t)
			return func() { wrapper.Doer = nil }
		}},
	{Name: "closure that makes closures", Kind: "closure", Root: "corpus.factories", Via: `["a"]`,
		Plant: func(track func(any)) func() {
			t := thing("a")
			factories["a"] = func() func() int { return func() int { return t.Do() } }
			track(t)
			return func() { clear(factories) }
		}},
}
