package corpus

import (
	"bufio"
	"log"
	"reflect"
	"sync"
)

var (
	smap     sync.Map
	smapKeys sync.Map
	pool     = sync.Pool{}
	writer   *bufio.Writer
	logger   *log.Logger
	value    reflect.Value
	made     func() int
	once     sync.Once
)

func (t *Thing) Write(p []byte) (int, error) { return len(p), nil }

var library = []Case{
	{Name: "sync.Map value", Kind: "library", Root: "corpus.smap", Via: `└─ ["k"]  *corpus.Thing`,
		Plant: func(track func(any)) func() {
			for i := range 20 {
				smap.Store(i, i)
			}
			t := thing("smap")
			smap.Store("k", t)
			track(t)
			return func() { smap.Clear() }
		}},
	{Name: "sync.Map key", Kind: "library", Root: "corpus.smapKeys", Via: "└─ key  *corpus.Thing",
		Plant: func(track func(any)) func() {
			t := thing("smap")
			smapKeys.Store(t, 1)
			track(t)
			return func() { smapKeys.Clear() }
		}},
	{Name: "New of a sync.Pool", Kind: "library", Root: "corpus.pool", Via: "captured t",
		Plant: func(track func(any)) func() {
			t := thing("pool")
			pool.New = func() any { return t.Do() }
			track(t)
			return func() { pool.New = nil }
		}},
	{Name: "writer of a bufio.Writer", Kind: "library", Root: "corpus.writer", Via: ".wr",
		Plant: func(track func(any)) func() {
			t := thing("w")
			writer = bufio.NewWriter(t)
			track(t)
			return func() { writer = nil }
		}},
	{Name: "writer of a log.Logger", Kind: "library", Root: "corpus.logger", Via: ".out",
		Plant: func(track func(any)) func() {
			t := thing("w")
			logger = log.New(t, "", 0)
			track(t)
			return func() { logger = nil }
		}},
	{Name: "reflect.Value", Kind: "library", Root: "corpus.value", Via: ".ptr",
		Plant: func(track func(any)) func() {
			t := thing("v")
			value = reflect.ValueOf(t)
			track(t)
			return func() { value = reflect.Value{} }
		}},
	{Name: "reflect.MakeFunc", Kind: "library", Root: "corpus.made", Via: "captured t",
		Plant: func(track func(any)) func() {
			t := thing("m")
			made = reflect.MakeFunc(reflect.TypeFor[func() int](), func([]reflect.Value) []reflect.Value {
				return []reflect.Value{reflect.ValueOf(t.Do())}
			}).Interface().(func() int)
			track(t)
			return func() { made = nil }
		}},
}
