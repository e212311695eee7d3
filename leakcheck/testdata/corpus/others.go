package corpus

import (
	"context"
	"log"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
)

var (
	rootCtx context.Context
)

// others are leaks through variables that belong to the standard library.
var others = []Case{
	{Name: "handler of the default ServeMux", Kind: "standard library", Root: "net/http.", Via: "*corpus.Thing", Hint: "a ServeMux of the test's own",
		Plant: func(track func(any)) func() {
			t := thing("mux")
			http.HandleFunc("/corpus", func(http.ResponseWriter, *http.Request) { t.Do() })
			track(t)
			return func() { *http.DefaultServeMux = http.ServeMux{} }
		}},
	{Name: "default slog handler", Kind: "standard library", Root: "log/slog.defaultLogger", Via: "*corpus.Thing", Hint: "set the former default again",
		Plant: func(track func(any)) func() {
			t := thing("slog")
			old, w := slog.Default(), log.Writer()
			slog.SetDefault(slog.New(slog.NewTextHandler(t, nil)))
			track(t)
			return func() { slog.SetDefault(old); log.SetOutput(w) }
		}},
	{Name: "writer of the standard logger", Kind: "standard library", Root: "log.std", Via: "*corpus.Thing", Hint: "set the former one again",
		Plant: func(track func(any)) func() {
			t := thing("log")
			w := log.Writer()
			log.SetOutput(t)
			track(t)
			return func() { log.SetOutput(w) }
		}},
	{Name: "channel of signal.Notify", Kind: "standard library", Root: "os/signal.handlers", Via: "chan os.Signal", Hint: "call signal.Stop",
		Plant: func(track func(any)) func() {
			c := make(chan os.Signal, 1)
			signal.Notify(c, os.Interrupt)
			track(c)
			return func() { signal.Reset(os.Interrupt) } // signal.Stop would keep the channel
		}},
	{Name: "derived context that was not cancelled", Kind: "context", Root: "corpus.rootCtx", Via: ".children", Hint: "call its cancel function",
		Plant: func(track func(any)) func() {
			parent, stop := context.WithCancel(context.Background())
			rootCtx = parent
			ctx, cancel := context.WithCancel(context.WithValue(parent, ctxKey{3}, thing("derived")))
			track(ctx)
			return func() { cancel(); rootCtx = nil; stop() }
		}},
}
