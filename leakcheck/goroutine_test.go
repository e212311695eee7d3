package leakcheck

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestWhere(t *testing.T) {
	f := func(fns ...string) (out []frame) {
		for _, fn := range fns {
			out = append(out, frame{fn: fn})
		}
		return out
	}
	for _, row := range []struct {
		why        string
		g          goroutine
		at, accept string
	}{
		{"the user's function", goroutine{frames: f("acme/llm.run")}, "acme/llm.run", "acme/llm.run"},
		{"not where all network waits end", goroutine{frames: f("internal/poll.runtime_pollWait", "net.(*conn).Read", "net/http.(*persistConn).Read")}, "net/http.(*persistConn).Read", "net/http.(*persistConn).Read"},
		{"nothing but plumbing: who started it", goroutine{frames: f("io.(*pipe).read", "io.Copy"), creator: frame{fn: "acme/llm.Start"}}, "io.Copy", "created by acme/llm.Start"},
		{"nothing at all", goroutine{}, "?", "?"},
	} {
		at, accept := row.g.where()
		assert.Equal(t, row.at, at.fn, row.why)
		assert.Equal(t, row.accept, accept, row.why)
	}
}
