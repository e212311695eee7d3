package leakcheck_test

import (
	"context"
	"testing"
	"time"

	"github.com/enginetest/enginetest/leakcheck"
)

type Runner struct{ buf []byte }

func (r *Runner) Forward() bool { return len(r.buf) > 0 }

type lruKey struct {
	fn  any
	arg int
}

var kwCache = map[string]func() bool{}

//go:noinline
func plant() *leakcheck.Ref {
	r := &Runner{make([]byte, 1<<16)}
	kwCache["forward/fp16"] = r.Forward
	return leakcheck.Track("runner", r, leakcheck.Patience(0))
}

type Loop struct{ in chan int }

func (l *Loop) run(f func(int) int) {
	for v := range l.in {
		f(v)
	}
}

//go:noinline
func plantG() (*leakcheck.Ref, *Loop) {
	b := &Runner{make([]byte, 1<<16)}
	l := &Loop{in: make(chan int)}
	go l.run(func(x int) int { return len(b.buf) + x })
	return leakcheck.Track("buf", b, leakcheck.Patience(0)), l
}

//go:noinline
func plantT() *leakcheck.Ref {
	r := &Runner{make([]byte, 1<<16)}
	time.AfterFunc(time.Hour, func() { r.Forward() })
	return leakcheck.Track("timer", r, leakcheck.Patience(0))
}

func TestX(t *testing.T) {
	t.Log(plant().Released(context.Background()))
	r, l := plantG()
	t.Log(r.Released(context.Background()))
	close(l.in)
	t.Log(plantT().Released(context.Background()))
}
