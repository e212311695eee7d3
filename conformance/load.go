package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/llm"
)

// underLoad are the properties of an engine that is disturbed while it works.
var underLoad = []property{
	{
		name:  "lifecycle/cancelled requests give everything back",
		why:   "clients leave: an engine that goes on for them fills up with work that no one waits for",
		check: cancelled,
	},
	{
		name:  "lifecycle/abandoned streams give everything back",
		why:   "a reader that leaves its loop has no other way to say that it wants no more",
		needs: []Capability{Streaming},
		check: abandoned,
	},
	{
		name:  "lifecycle/abort by id ends one request",
		why:   "a proxy aborts by id: the right request must end, with what it has, and no other",
		needs: []Capability{AbortByID, TokenIDs},
		check: abortsOne,
	},
	{
		name:  "lifecycle/a bad request fails alone",
		why:   "one caller's mistake must not cost the others their answers",
		check: badRequest,
	},
	{
		name:  "lifecycle/prefix reset under load",
		why:   "blocks that are in use must neither be forgotten nor handed to another sequence",
		needs: []Capability{PrefixReset},
		check: resetUnderLoad,
	},
	{
		name:  "lifecycle/sleep under load",
		why:   "an engine that sleeps has no memory to answer with: callers must hear of it, and nothing may be lost afterwards",
		needs: []Capability{Sleeping},
		check: sleepUnderLoad,
	},
	{
		name:  "lifecycle/drains",
		why:   "a rollout drains: what runs finishes to its last token, and what comes is refused",
		needs: []Capability{Draining},
		check: drains,
	},
	{
		name:  "lifecycle/an injected failure reaches every caller",
		why:   "an engine whose step fails must say so to everyone who waits, and still give everything back",
		needs: []Capability{Injection},
		check: fails,
	},
	{
		name:  "lifecycle/death of its process reaches every caller",
		why:   "a killed process answers no one: whoever waits for it must hear of it at once",
		needs: []Capability{OwnProcess},
		check: killed,
	},
}

// noticed is how long callers may wait for the end of an engine that died, on a machine that has
// other work; engines of this suite need a few milliseconds.
const noticed = 30 * time.Second

// freed checks that the engine works on nothing although nothing was answered since. Time proves
// nothing on a busy machine, so it is counted in tokens: in five answers of 40 tokens every
// sequence of the engine advances, and one that was given up with most of longAnswer before it
// still runs.
func (c *check) freed(l *live) error {
	var now llm.Activity
	for range 5 {
		if _, err := l.one(c, c.long(1, 40)[0]); err != nil {
			return err
		}
		var known bool
		var err error
		if now, known, err = l.activity(c); err == nil && !known {
			c.notef("the engine does not tell what it works on")
			return nil
		}
		if err != nil || now.Idle() {
			return err
		}
	}
	return fmt.Errorf("%d sequences run and %d wait after 200 more tokens, with no caller left", now.Running,
		now.Waiting)
}

// still checks that an engine is idle and answers as it did before.
func (c *check) still(l *live, reqs []llm.Request, want []llm.Output, after string) error {
	if err := c.idleSoon(l); err != nil {
		return fmt.Errorf("after %s: %w", after, err)
	}
	got, err := l.each(c, reqs...)
	if err != nil {
		return fmt.Errorf("after %s: %w", after, err)
	}
	if d := c.s.difference(reqs, want, got); d != "" {
		return fmt.Errorf("after %s: %s", after, d)
	}
	return nil
}

func cancelled(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	reqs := c.greedy(2, 16)
	want, err := l.each(c, reqs...)
	if err != nil {
		return err
	}
	long, uncut, err := c.interrupted(l, 4)
	if err != nil {
		return err
	}
	for round := range 3 {
		ctx, cancel := cancellable(c)
		calls := l.background(ctx, long...)
		err := l.running(c, 1+round, calls)
		cancel()
		if err := errors.Join(err, wait(c, calls)); err != nil {
			return fmt.Errorf("requests whose context was cancelled: %w", err)
		}
		if err := c.freed(l); err != nil {
			return fmt.Errorf("after requests whose context was cancelled: %w", err)
		}
		for i, x := range calls {
			if err := c.honest(x, long[i], uncut[i]); err != nil {
				return fmt.Errorf("a request whose context was cancelled: %w", err)
			}
		}
	}
	return c.still(l, reqs, want, "12 cancelled requests")
}

func abandoned(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	reqs := c.greedy(2, 16)
	want, err := l.each(c, reqs...)
	if err != nil {
		return err
	}
	for range 4 {
		seen := 0
		_, err := l.stream(c, c.long(1, longAnswer)[0], func(llm.Delta) bool { seen++; return seen == 3 })
		if err != nil {
			return err
		}
		if err := c.freed(l); err != nil {
			return fmt.Errorf("after a stream that was left after 3 deltas: %w", err)
		}
	}
	return c.still(l, reqs, want, "4 streams that were left after 3 deltas")
}

func abortsOne(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	reqs, uncut, err := c.interrupted(l, 3)
	if err != nil {
		return err
	}
	for i := range reqs {
		reqs[i].ID = fmt.Sprintf("conformance-%d", i)
	}
	calls := l.background(c, reqs...)
	if err := l.running(c, 3, calls); err != nil {
		return err
	}
	e, _ := l.engine().(aborter)
	if !e.Abort("conformance-1") && !calls[1].returned() {
		return errors.New("abort of a request that runs says that there is none")
	}
	if err := wait(c, calls); err != nil {
		return err
	}
	for i, x := range calls {
		if x.err != nil && i != 1 {
			return fmt.Errorf("request %d of 3 failed when another was aborted: %w", i+1, x.err)
		}
		if err := c.honest(x, reqs[i], uncut[i]); err != nil {
			return fmt.Errorf("request %d of 3, when the second was aborted: %w", i+1, err)
		}
		if x.err == nil && i != 1 && x.outs[0].Completions[0].FinishReason == llm.FinishAbort {
			return fmt.Errorf("request %d of 3 was aborted in place of the second", i+1)
		}
	}
	if e.Abort("conformance-1") {
		return errors.New("abort of a request that has ended says that it ended one")
	}
	return c.idleSoon(l)
}

func badRequest(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	reqs := c.greedy(3, 32)
	want, err := l.each(c, reqs...)
	if err != nil {
		return err
	}
	calls := l.background(c, reqs...)
	for _, bad := range []llm.Request{
		c.s.prompt(0, llm.SamplingParams{MaxTokens: -1}),
		c.s.prompt(0, llm.SamplingParams{MaxTokens: 4, Temperature: -1}),
		{Sampling: llm.SamplingParams{MaxTokens: 4}, PromptTokenIDs: []int32{-1}},
	} {
		if outs, err := l.generate(c, bad); err == nil {
			return fmt.Errorf("a request that no engine can answer was answered: %s\n%s",
				answer(outs[0].Completions[0]), requests([]llm.Request{bad}))
		}
	}
	if err := wait(c, calls); err != nil {
		return err
	}
	got := make([]llm.Output, len(calls))
	for i, x := range calls {
		if x.err != nil {
			return fmt.Errorf("a request failed beside others that were refused: %w", x.err)
		}
		got[i] = x.outs[0]
	}
	if d := c.s.difference(reqs, want, got); d != "" {
		return errors.New("beside requests that were refused: " + d)
	}
	return nil
}

func resetUnderLoad(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	reqs := c.greedy(4, 64)
	want, err := l.each(c, reqs...)
	if err != nil {
		return err
	}
	e, _ := l.engine().(harness.PrefixCacheResetter)
	calls := l.background(c, reqs...)
	refused, resets := 0, 0
	for ; !calls[len(calls)-1].returned() && resets < 200; resets++ {
		if err := e.ResetPrefixCache(c); err != nil {
			refused++
		}
		time.Sleep(time.Millisecond)
	}
	if err := wait(c, calls); err != nil {
		return err
	}
	got := make([]llm.Output, len(calls))
	for i, x := range calls {
		if x.err != nil {
			return fmt.Errorf("a request failed while the prefix cache was reset: %w", x.err)
		}
		got[i] = x.outs[0]
	}
	if d := c.s.difference(reqs, want, got); d != "" {
		return errors.New("while the prefix cache was reset: " + d)
	}
	if err := c.idleSoon(l); err != nil {
		return err
	}
	if err := e.ResetPrefixCache(c); err != nil {
		return fmt.Errorf("the prefix cache of an idle engine cannot be reset: %w", err)
	}
	c.notef("%d resets, %d refused", resets, refused)
	return nil
}

func sleepUnderLoad(c *check) error {
	l, err := c.own()
	if err != nil {
		return err
	}
	e, _ := l.engine().(harness.Sleeper)
	reqs := c.greedyPlain(2, 16)
	want, err := l.each(c, reqs...)
	if err != nil {
		return err
	}
	long, uncut, err := c.interrupted(l, 3)
	if err != nil {
		return err
	}
	for level := 1; level <= 2; level++ {
		calls := l.background(c, long...)
		if err := l.running(c, 1, calls); err != nil {
			return err
		}
		if err := e.Sleep(c, level); err != nil {
			return fmt.Errorf("sleep at level %d under load: %w", level, err)
		}
		if err := wait(c, calls); err != nil {
			return fmt.Errorf("requests of an engine that fell asleep: %w", err)
		}
		for i, x := range calls {
			if err := c.honest(x, long[i], uncut[i]); err != nil {
				return fmt.Errorf("a request of an engine that fell asleep: %w", err)
			}
		}
		if _, err := l.one(c, reqs[0]); err == nil {
			return fmt.Errorf("an engine that sleeps at level %d answered a request", level)
		} else if c.Err() != nil {
			return fmt.Errorf("a request to an engine that sleeps hangs: %w", err)
		}
		if err := e.Wake(c); err != nil {
			return fmt.Errorf("wake from level %d: %w", level, err)
		}
		if err := c.still(l, reqs, want, fmt.Sprintf("sleep at level %d and wake", level)); err != nil {
			return err
		}
	}
	return nil
}

// greedyPlain is greedy for a property that must not start the shared engine: without
// log-probabilities.
func (c *check) greedyPlain(n, maxTokens int) []llm.Request {
	reqs := make([]llm.Request, n)
	for i := range reqs {
		reqs[i] = c.s.prompt(i, llm.SamplingParams{MaxTokens: maxTokens})
	}
	return reqs
}

func drains(c *check) error {
	l, err := c.own()
	if err != nil {
		return err
	}
	e, _ := l.engine().(drainer)
	reqs := c.long(4, longAnswer/4)
	want, err := l.generate(c, reqs...)
	if err != nil {
		return err
	}
	calls := l.background(c, reqs...)
	if err := l.running(c, 4, calls); err != nil {
		return err
	}
	drained := make(chan error, 1)
	go func() { drained <- e.Drain(c) }()
	var late error
	for late == nil && len(drained) == 0 {
		_, late = l.one(c, c.s.prompt(0, llm.SamplingParams{MaxTokens: 1}))
	}
	if err := <-drained; err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	if now, known, err := l.activity(c); err != nil {
		return err
	} else if known && !now.Idle() {
		return fmt.Errorf("the drain is over while %d requests run and %d wait", now.Running, now.Waiting)
	}
	if err := wait(c, calls); err != nil {
		return err
	}
	got := make([]llm.Output, len(calls))
	for i, x := range calls {
		if x.err != nil {
			return fmt.Errorf("a request that ran when the drain began failed: %w", x.err)
		}
		got[i] = x.outs[0]
	}
	if d := c.s.difference(reqs, want, got); d != "" {
		return errors.New("requests that a drain let finish: " + d)
	}
	if _, err := l.one(c, c.s.prompt(0, llm.SamplingParams{MaxTokens: 1})); err == nil {
		return errors.New("an engine that has been drained answered a request")
	}
	return nil
}

func fails(c *check) error {
	for _, f := range []llm.Fault{
		{Point: llm.FaultForward, Rank: -1, After: 5, Action: llm.ActError, Text: "planted by the suite"},
		{Point: llm.FaultForward, Rank: -1, After: 5, Action: llm.ActPanic, Text: "planted by the suite"},
		{Point: llm.FaultOutput, Rank: -1, After: 5, Action: llm.ActError, Text: "planted by the suite"},
	} {
		if err := c.failing(f); err != nil {
			return fmt.Errorf("%s at %s: %w", f.Action, f.Point, err)
		}
	}
	return nil
}

func (c *check) failing(f llm.Fault) error {
	if err := c.alone(); err != nil {
		return err
	}
	l, err := c.start(c.s.opts.faulty(f))
	if err != nil {
		return err
	}
	calls := l.background(c, c.long(3, 64)...)
	if err := wait(c, calls); err != nil {
		return err
	}
	for i, x := range calls {
		if x.err == nil {
			return fmt.Errorf("request %d of 3 has no error", i+1)
		}
	}
	if _, err := l.one(c, c.s.prompt(0, llm.SamplingParams{MaxTokens: 2})); err == nil {
		return errors.New("an engine that has failed answered a request")
	}
	return l.close()
}

func killed(c *check) error {
	l, err := c.own()
	if err != nil {
		return err
	}
	calls := l.background(c, c.long(3, longAnswer)...)
	if err := l.running(c, 1, calls); err != nil {
		return err
	}
	p, _ := l.engine().(harness.ProcessLister)
	if err := kill(p.PIDs()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c, noticed)
	defer cancel()
	began := time.Now()
	if err := wait(ctx, calls); err != nil {
		return fmt.Errorf("%s after its process was killed: %w", noticed, err)
	}
	c.notef("noticed after %s", time.Since(began).Round(time.Millisecond))
	for _, x := range calls {
		if x.err == nil {
			return errors.New("a request whose engine's process was killed has no error")
		}
	}
	if _, err := l.one(c, c.s.prompt(0, llm.SamplingParams{MaxTokens: 2})); err == nil {
		return errors.New("an engine whose process was killed answered a request")
	}
	l.killed = true
	return l.close()
}

// kill ends processes that the engine named.
func kill(pids []int) error {
	for _, pid := range pids {
		if pid <= 1 {
			return fmt.Errorf("the engine names process %d as its own", pid)
		}
		if err := killProcess(pid); err != nil {
			return fmt.Errorf("cannot kill process %d of the engine: %w", pid, err)
		}
	}
	return nil
}
