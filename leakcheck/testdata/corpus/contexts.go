package corpus

import (
	"context"
	"errors"
	"fmt"
)

type ctxKey struct{ n int }

var (
	baseCtx   context.Context
	parentCtx context.Context
	lastErr   error
	failures  []error
)

type requestError struct {
	req *Thing
	err error
}

func (e *requestError) Error() string { return "request " + e.req.Name + ": " + e.err.Error() }
func (e *requestError) Unwrap() error { return e.err }

var contexts = []Case{
	{Name: "value of a context", Kind: "context", Root: "corpus.baseCtx", Via: ".val", Hint: "context keeps its values",
		Plant: func(track func(any)) func() {
			t := thing("ctx")
			c := context.WithValue(context.Background(), ctxKey{1}, t)
			c, cancel := context.WithCancel(c)
			baseCtx = context.WithValue(c, ctxKey{2}, "other")
			track(t)
			return func() { cancel(); baseCtx = nil }
		}},
	{Name: "child that was not cancelled", Kind: "context", Root: "corpus.parentCtx", Via: ".children", Hint: "call the stop function",
		Plant: func(track func(any)) func() {
			parent, stop := context.WithCancel(context.Background())
			parentCtx = parent
			t := thing("child")
			context.AfterFunc(parent, func() { t.Do() })
			track(t)
			return func() { parentCtx = nil; stop() }
		}},
	{Name: "error that keeps its request", Kind: "error", Root: "corpus.lastErr", Via: ".req", Hint: "an error keeps",
		Plant: func(track func(any)) func() {
			t := thing("failed")
			lastErr = fmt.Errorf("engine: %w", &requestError{t, errors.New("out of memory")})
			track(t)
			return func() { lastErr = nil }
		}},
	{Name: "joined errors", Kind: "error", Root: "corpus.failures", Via: ".req", Hint: "an error keeps",
		Plant: func(track func(any)) func() {
			t := thing("failed")
			failures = append(failures, errors.Join(errors.New("first"), &requestError{t, errors.New("second")}))
			track(t)
			return func() { failures = nil }
		}},
}
