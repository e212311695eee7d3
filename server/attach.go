package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/enginetest/enginetest/internal/backoff"
)

// Attached opens a server that runs elsewhere; see [Attach].
type Attached func(ctx context.Context) (*Server, error)

// Attach uses a server that something else has started. Nothing of it is owned, so its proof is
// another: when it is stopped here, none of this test's requests are in flight, the connections are
// closed, and the server's running and waiting requests and KV usage are back to what they were
// before. Without Speaks, the protocol is found by asking.
func Attach(url string) Attached {
	base := config{name: strings.TrimSuffix(url, "/"), url: strings.TrimSuffix(url, "/"), api: openAI}
	o := opener(base)
	return func(ctx context.Context) (*Server, error) { return o(ctx) }
}

// Start attaches, once the server is ready.
func (a Attached) Start(ctx context.Context) (*Server, error) { return a(ctx) }

// With returns an Attached with more options.
func (a Attached) With(opts ...AttachOption) Attached {
	more := make([]Option, len(opts))
	for i, o := range opts {
		more[i] = o
	}
	return Attached(Opener(a).With(more...))
}

func attach(ctx context.Context, cfg *config) (*Server, error) {
	s := newServer(cfg, nil)
	s.url = cfg.url
	s.client.base = cfg.url
	if cfg.api == openAI {
		cfg.api = s.recognize(ctx)
	}
	err := s.client.health(ctx, cfg.api.healthPath, func(status int) bool {
		return status < 300 || cfg.api.anyHealth && status < 500
	})
	if err == nil && cfg.api.setUp != nil && cfg.api != ollama {
		err = cfg.api.setUp(ctx, s)
	}
	if err == nil {
		err = s.baseline(ctx)
	}
	if err != nil {
		s.client.close(ErrStopped)
		return nil, fmt.Errorf("server: attach to %s: %w", cfg.url, err)
	}
	return s, nil
}

// recognize finds the protocol by what only one of them has.
func (s *Server) recognize(ctx context.Context) *api {
	var metrics string
	if s.client.get(ctx, "/metrics", &metrics) == nil {
		for _, m := range []struct {
			prefix string
			api    *api
		}{{"enginetest:", enginetest}, {"vllm:", vLLM}, {"sglang:", sgLang}, {"llamacpp:", llamaCpp}} {
			if strings.Contains(metrics, "\n"+m.prefix) {
				return m.api
			}
		}
	}
	if s.client.get(ctx, "/api/version", nil) == nil {
		return ollama
	}
	var props struct {
		Slots *int `json:"total_slots"`
	}
	if s.client.get(ctx, "/props", &props) == nil && props.Slots != nil {
		return llamaCpp
	}
	return openAI
}

// baseline notes what the server is working on.
func (s *Server) baseline(ctx context.Context) error {
	st, err := s.Stats(ctx)
	var refused *APIError
	switch {
	case errors.Is(err, errors.ErrUnsupported), errors.As(err, &refused):
		return nil // it has no metrics: the report says so
	case err != nil:
		return err
	}
	s.before = &st
	return nil
}

// detach ends the use of a server that runs elsewhere.
func (s *Server) detach(ctx context.Context) (r Report) {
	r.step(stepRequests, func() (string, error) {
		n := s.client.close(ErrStopped)
		if err := s.client.wait(ctx, requestsTime); err != nil {
			return "", err
		}
		if n > 0 {
			return "", fmt.Errorf("%d requests of this test were in flight; they are cancelled", n)
		}
		return "none in flight, all connections closed", nil
	})
	r.step(stepIdle, func() (string, error) { return s.idle(ctx) })
	return r
}

// idleTime is how long a remote server may take to be as it was.
const idleTime = 10 * time.Second

// idle waits until the server works on no more than before. It asks over a client of its own,
// because this test's is closed.
func (s *Server) idle(ctx context.Context) (string, error) {
	if s.before == nil {
		return "not checked: the server has no metrics", nil
	}
	if len(s.before.Unknown) == 3 {
		return "not checked: the server does not report what it is working on", nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, idleTime, fmt.Errorf("waited %s", idleTime))
	defer cancel()
	asking := newServer(s.cfg, nil)
	asking.client.base = s.url
	defer asking.client.close(ErrStopped)
	grown := ""
	for looks := backoff.New(time.Millisecond, 100*time.Millisecond); ; {
		now, err := asking.Stats(ctx)
		if err == nil {
			if grown = growth(*s.before, now); grown == "" {
				return fmt.Sprintf("running %d, waiting %d, KV usage %.1f%%: as before", now.Running, now.Waiting,
					100*now.KVUsage), nil
			}
		} else if grown == "" || ctx.Err() == nil {
			return "", err
		}
		if cause := looks.Wait(ctx); cause != nil {
			return "", fmt.Errorf("the server is not back to what it was before this test: %s; "+
				"another client's requests look the same (%w)", grown, cause)
		}
	}
}

// growth names what is more than before.
func growth(before, now Stats) string {
	var parts []string
	if now.Running > before.Running {
		parts = append(parts, fmt.Sprintf("%d requests are running, %d were", now.Running, before.Running))
	}
	if now.Waiting > before.Waiting {
		parts = append(parts, fmt.Sprintf("%d requests are waiting, %d were", now.Waiting, before.Waiting))
	}
	if now.KVUsage > before.KVUsage+kvSlack {
		parts = append(parts, fmt.Sprintf("the KV cache is used to %.1f%%, it was to %.1f%%", 100*now.KVUsage,
			100*before.KVUsage))
	}
	return strings.Join(parts, "; ")
}

// kvSlack is the share of a KV cache that servers round to.
const kvSlack = 0.001
