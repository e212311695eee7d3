package openai

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/enginetest/enginetest/llm"
)

// Latency delays tokens, so that a small model answers at the pace of a large one. A token is sent
// when it is due, or when the engine has it, whichever is later. The zero value delays nothing.
type Latency struct {
	FirstToken time.Duration // from the request to the first token
	InterToken time.Duration // between two tokens
	// Jitter changes each delay by at most this share of it, in [0, 1]. The changes follow from
	// Seed and from the number of the request, in the order of arrival.
	Jitter float64
	Seed   uint64
}

// Check reports what is out of range.
func (l Latency) Check() error {
	switch {
	case l.FirstToken < 0:
		return fmt.Errorf("openai: Latency.FirstToken is %s, must be at least 0", l.FirstToken)
	case l.InterToken < 0:
		return fmt.Errorf("openai: Latency.InterToken is %s, must be at least 0", l.InterToken)
	case !(l.Jitter >= 0 && l.Jitter <= 1):
		return fmt.Errorf("openai: Latency.Jitter is %v, must be in [0, 1]", l.Jitter)
	}
	return nil
}

// pacer says when the tokens of a request's choices are due.
type pacer struct {
	profile Latency
	random  []*rand.Rand // one per choice
	due     []time.Time  // of the token that was asked for last
	tokens  []int        // asked for so far
	closed  <-chan struct{}
}

// newPacer starts the profile for a request; nil without one.
func (s *Server) newPacer(began time.Time, choices int) *pacer {
	number := s.requests.Add(1)
	profile := s.options.Latency
	if profile.FirstToken == 0 && profile.InterToken == 0 {
		return nil
	}
	p := &pacer{profile: profile, tokens: make([]int, choices), closed: s.closed()}
	for i := range choices {
		p.random = append(p.random, rand.New(rand.NewPCG(profile.Seed, number<<16+uint64(i))))
		p.due = append(p.due, began)
	}
	return p
}

// delay is how long a choice's next token takes.
func (p *pacer) delay(choice int) time.Duration {
	d := p.profile.InterToken
	if p.tokens[choice] == 0 {
		d = p.profile.FirstToken
	}
	if p.profile.Jitter > 0 {
		d += time.Duration(float64(d) * p.profile.Jitter * (2*p.random[choice].Float64() - 1))
	}
	return d
}

// wait returns when a choice's token of this number, counted from 1, is due.
func (p *pacer) wait(ctx context.Context, choice, token int) error {
	for ; p.tokens[choice] < token; p.tokens[choice]++ {
		p.due[choice] = p.due[choice].Add(p.delay(choice))
	}
	return sleep(ctx, time.Until(p.due[choice]), p.closed)
}

// sleep waits, unless the context ends first or the server is closed.
func sleep(ctx context.Context, d time.Duration, closed <-chan struct{}) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-closed:
		return fmt.Errorf("%w before the answer was complete", llm.ErrStopped)
	case <-ctx.Done():
		return ctx.Err()
	}
}
