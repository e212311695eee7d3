package corpus

import "time"

var (
	heldTimer  *time.Timer
	firedTimer *time.Timer
	sessions   = map[string]*session{}
)

type session struct {
	idle *time.Timer
	t    *Thing
}

func (s *session) expire() { s.t = nil }

var timers = []Case{
	{Name: "pending time.AfterFunc", Kind: "timer", Root: "timer", Via: "captured t", Hint: "Stop it in Close",
		Plant: func(track func(any)) func() {
			t := thing("timer")
			tm := handle(time.AfterFunc(time.Hour, func() { t.Do() }))
			track(t)
			return func() { tm().Stop() }
		}},
	{Name: "pending timer with a method value", Kind: "timer", Root: "timer", Via: "method value corpus.(*session).expire-fm",
		Plant: func(track func(any)) func() {
			s := &session{t: thing("session")}
			s.idle = time.AfterFunc(time.Hour, s.expire)
			track(s.t)
			tm := handle(s.idle)
			return func() { tm().Stop() }
		}},
	{Name: "stopped timer that is still held", Kind: "timer", Root: "corpus.heldTimer", Via: "captured t", Hint: "even when it was stopped",
		Plant: func(track func(any)) func() {
			t := thing("timer")
			heldTimer = time.AfterFunc(time.Hour, func() { t.Do() })
			heldTimer.Stop()
			track(t)
			return func() { heldTimer = nil }
		}},
	{Name: "fired timer that is still held", Kind: "timer", Root: "corpus.firedTimer", Via: "captured t", Hint: "has fired",
		Plant: func(track func(any)) func() {
			t, fired := thing("timer"), make(chan bool)
			firedTimer = time.AfterFunc(0, func() { close(fired); t.Do() })
			<-fired
			track(t)
			return func() { firedTimer = nil }
		}},
}
