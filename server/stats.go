package server

import (
	"bufio"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/enginetest/enginetest/llm"
)

// Stats is what a server says of its work.
type Stats struct {
	Running int     // requests that are computed
	Waiting int     // requests that wait for their turn
	KVUsage float64 // share of the KV cache that requests use, in [0, 1]

	Unknown []string // the fields above that the server does not report
	Loaded  []LoadedModel
	Metrics map[string]float64 // every metric, those of one name with different labels added up
}

// LoadedModel is a model in memory, as Ollama lists it.
type LoadedModel struct {
	Name        string
	Bytes       int64 // in all
	DeviceBytes int64 // of them on GPUs
}

// Knows reports whether the server reports a field: "Running", "Waiting" or "KVUsage".
func (s Stats) Knows(field string) bool { return !slices.Contains(s.Unknown, field) }

// Stats asks the server what it is working on.
func (s *Server) Stats(ctx context.Context) (Stats, error) {
	if s.cfg.api.stats == nil {
		return Stats{}, s.lacks("metrics")
	}
	return s.cfg.api.stats(ctx, s)
}

// Activity is Stats for a fixture. A server that does not report what runs has no Activity: idle is
// not assumed.
func (s *Server) Activity(ctx context.Context) (llm.Activity, error) {
	st, err := s.Stats(ctx)
	if err != nil {
		return llm.Activity{}, err
	}
	if !st.Knows("Running") {
		return llm.Activity{}, s.lacks("metric of running requests")
	}
	return llm.Activity{Running: st.Running, Waiting: st.Waiting, KVUsage: st.KVUsage}, nil
}

// prometheus makes a stats verb of metrics' names; "" is a metric that the server does not have.
func prometheus(running, waiting, usage string) func(context.Context, *Server) (Stats, error) {
	return func(ctx context.Context, s *Server) (Stats, error) {
		var text string
		if err := s.client.get(ctx, "/metrics", &text); err != nil {
			return Stats{}, err
		}
		m := parseMetrics(text)
		st := Stats{Metrics: m}
		take := func(field, name string, to func(float64)) {
			if v, ok := m[name]; ok {
				to(v)
			} else {
				st.Unknown = append(st.Unknown, field)
			}
		}
		take("Running", running, func(v float64) { st.Running = int(v) })
		take("Waiting", waiting, func(v float64) { st.Waiting = int(v) })
		take("KVUsage", usage, func(v float64) { st.KVUsage = v })
		if len(m) == 0 {
			return st, fmt.Errorf("server: %s: GET /metrics has no metrics", s.cfg.name)
		}
		return st, nil
	}
}

// parseMetrics reads Prometheus' text format: name{labels} value.
func parseMetrics(text string) map[string]float64 {
	m := map[string]float64{}
	for sc := bufio.NewScanner(strings.NewReader(text)); sc.Scan(); {
		line := strings.TrimSpace(sc.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		end := strings.IndexAny(line, "{ \t")
		if end < 0 {
			continue
		}
		name, rest := line[:end], line[end:]
		if rest[0] == '{' {
			rest = rest[strings.LastIndexByte(rest, '}')+1:]
		}
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			continue
		}
		if v, err := strconv.ParseFloat(fields[0], 64); err == nil {
			m[name] += v
		}
	}
	return m
}
