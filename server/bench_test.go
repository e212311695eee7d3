package server_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/server"
)

// BenchmarkDeath measures from the exit of a server at its start to the error that names it.
func BenchmarkDeath(b *testing.B) {
	var sum, worst time.Duration
	n := 0
	for b.Loop() {
		_, err := stubServer("-die=7", "-stamp").Start(b.Context())
		now := time.Now()
		var exit *server.ExitError
		if !errors.As(err, &exit) || len(exit.Lines) == 0 {
			b.Fatal(err)
		}
		last := exit.Lines[len(exit.Lines)-1].Text
		nanos, convErr := strconv.ParseInt(strings.TrimPrefix(last, "exit at "), 10, 64)
		if convErr != nil {
			b.Fatal(convErr)
		}
		took := now.Sub(time.Unix(0, nanos))
		sum, worst = sum+took, max(worst, took)
		n++
	}
	b.ReportMetric(float64(sum.Microseconds())/1000/float64(n), "ms-to-error")
	b.ReportMetric(float64(worst.Microseconds())/1000, "ms-to-error-worst")
}

// BenchmarkLife measures a start, one request and a stop.
func BenchmarkLife(b *testing.B) {
	for b.Loop() {
		s, err := stubServer().Start(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if _, err := s.Generate(b.Context(), llm.Request{Prompt: "a"}); err != nil {
			b.Fatal(err)
		}
		if err := s.Stop(b.Context()).Err(); err != nil {
			b.Fatal(err)
		}
	}
}
