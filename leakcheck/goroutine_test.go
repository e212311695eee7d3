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
		why string
		g   goroutine
		at  string
	}{
		{"the user's function", goroutine{frames: f("acme/llm.run")}, "acme/llm.run"},
		{"not where all network waits end", goroutine{frames: f("internal/poll.runtime_pollWait", "net.(*conn).Read",
			"net/http.(*persistConn).Read")}, "net/http.(*persistConn).Read"},
		{"nothing but plumbing: the outermost", goroutine{
			frames:  f("io.(*pipe).read", "io.Copy"),
			creator: frame{fn: "acme/llm.Start"},
		}, "io.Copy"},
		{"nothing at all", goroutine{}, "?"},
	} {
		assert.Equal(t, row.at, row.g.where().fn, row.why)
	}
}
