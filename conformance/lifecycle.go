package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/llm"
)

// lifecycle are the properties of starts, ends and of what comes between. Each starts engines of
// its own.
var lifecycle = []property{
	{
		name: "lifecycle/ends after nothing",
		why:  "a suite that skips its only test has still loaded a model",
		check: func(c *check) error {
			_, err := c.own()
			return err
		},
	},
	{
		name: "lifecycle/ends after one request",
		why:  "the first request builds what lazy initialization has left out, and all of it must go, too",
		check: func(c *check) error {
			l, err := c.own()
			if err != nil {
				return err
			}
			_, err = l.one(c, c.s.prompt(0, llm.SamplingParams{MaxTokens: 4}))
			return err
		},
	},
	{
		name:  "lifecycle/ends with requests in flight",
		why:   "a caller of an engine that ends must hear of it: a lost call hangs the suite, and a cut answer that looks whole is believed",
		check: endsInFlight,
	},
	{
		name:  "lifecycle/ends while streaming",
		why:   "a stream that no one ends keeps its reader, and through it the engine",
		needs: []Capability{Streaming},
		check: endsStreaming,
	},
	{
		name:  "lifecycle/shuts down twice",
		why:   "a test ends its engine, and so does its cleanup: the second call must neither fail nor wait",
		check: endsTwice,
	},
	{
		name:  "lifecycle/shuts down concurrently",
		why:   "a signal handler and a cleanup may end the same engine at the same time, under load",
		check: endsConcurrently,
	},
	{
		name:  "lifecycle/refuses after its end",
		why:   "a request to an engine that is gone must fail, not hang and not panic",
		check: refusesAfterEnd,
	},
	{
		name:  "lifecycle/gives up a start",
		why:   "a start whose test has timed out must stop loading and leave nothing behind",
		check: givesUpStart,
	},
	{
		name:  "lifecycle/fails to start cleanly",
		why:   "an engine that fails half-way through its start has memory, threads and files that no one has a handle for",
		needs: []Capability{BadStarts},
		check: failsToStart,
	},
	{
		name:  "lifecycle/two side by side",
		why:   "two engines of one process must not share what either of them ends",
		check: sideBySide,
	},
	{
		name:  "lifecycle/nothing grows",
		why:   "what each engine leaves behind adds up over a suite until the machine has no memory",
		check: nothingGrows,
	},
}

// own is fresh for a property that must be alone with its engine.
func (c *check) own() (*live, error) {
	if err := c.alone(); err != nil {
		return nil, err
	}
	return c.fresh()
}

const longAnswer = 400 // tokens of an answer that gets interrupted

func endsInFlight(c *check) error {
	l, err := c.own()
	if err != nil {
		return err
	}
	reqs, whole, err := c.interrupted(l, 4)
	if err != nil {
		return err
	}
	calls := l.background(c, reqs...)
	if err := l.running(c, 4, calls); err != nil {
		return err
	}
	if err := l.close(); err != nil {
		return err
	}
	if err := wait(c, calls); err != nil {
		return err
	}
	for i, x := range calls {
		if err := c.honest(x, reqs[i], whole[i]); err != nil {
			return err
		}
	}
	return nil
}

func endsStreaming(c *check) error {
	l, err := c.own()
	if err != nil {
		return err
	}
	first, over := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	var got []llm.Completion
	go func() {
		var err error
		got, err = l.stream(c, c.long(1, longAnswer)[0], func(llm.Delta) bool {
			once.Do(func() { close(first) })
			return false
		})
		over <- err
	}()
	select {
	case <-first:
	case err := <-over:
		return err
	case <-c.Done():
		return errors.New("a stream has sent nothing")
	}
	if err := l.close(); err != nil {
		return err
	}
	select {
	case err = <-over:
	case <-c.Done():
		return errors.New("a stream goes on after the end of its engine")
	}
	if err == nil && got[0].FinishReason == "" {
		return errors.New("a stream that the engine's end has cut short ended without an error and without a finish reason")
	}
	return nil
}

func endsTwice(c *check) error {
	l, err := c.own()
	if err != nil {
		return err
	}
	e := l.engine()
	for i := range 3 {
		if err := e.Shutdown(c); err != nil {
			return fmt.Errorf("shutdown %d: %w", i+1, err)
		}
	}
	return nil
}

func endsConcurrently(c *check) error {
	l, err := c.own()
	if err != nil {
		return err
	}
	calls := l.background(c, c.long(4, longAnswer)...)
	if err := l.running(c, 1, calls); err != nil {
		return err
	}
	e := l.engine()
	errs := make([]error, 8)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = e.Shutdown(c) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("8 shutdowns at the same time: %w", err)
	}
	return wait(c, calls)
}

func refusesAfterEnd(c *check) error {
	l, err := c.own()
	if err != nil {
		return err
	}
	e := l.engine()
	if err := e.Shutdown(c); err != nil {
		return err
	}
	_, err = e.Generate(c, c.s.prompt(0, llm.SamplingParams{MaxTokens: 4}))
	if err == nil {
		return errors.New("an engine that was shut down answered a request")
	}
	if c.Err() != nil {
		return fmt.Errorf("a request to an engine that was shut down waits for its caller's context: %w", err)
	}
	return nil
}

func givesUpStart(c *check) error {
	if err := c.alone(); err != nil {
		return err
	}
	began := time.Now()
	l, err := c.fresh()
	if err != nil {
		return err
	}
	took := time.Since(began)
	if err := l.close(); err != nil {
		return err
	}
	for _, share := range []float64{0, 0.1, 0.3, 0.6} {
		ctx, cancel := context.WithTimeout(c, time.Duration(share*float64(took)))
		l, err := c.s.start(ctx, c.s.open)
		cancel()
		if err == nil {
			err = l.close()
		} else if leftBehind(err) == nil && c.Err() == nil {
			continue // it gave up
		}
		if err != nil {
			return fmt.Errorf("a start whose context ended after %.0f %% of its time: %w", 100*share, err)
		}
	}
	return nil
}

// leftBehind is the error of a teardown inside that of a failed start, nil when nothing was left.
func leftBehind(err error) error {
	if left, ok := errors.AsType[*harness.Error](err); ok {
		return left
	}
	return nil
}

func failsToStart(c *check) error {
	if err := c.alone(); err != nil {
		return err
	}
	for _, bad := range c.s.opts.bad {
		l, err := c.s.start(c, bad.start)
		if err == nil {
			return errors.Join(fmt.Errorf("the start %q must fail, and went well", bad.name), l.close())
		}
		if left := leftBehind(err); left != nil {
			return fmt.Errorf("the start %q failed, as it should, and left something behind: %w", bad.name, left)
		}
	}
	c.notef("%d failed starts", len(c.s.opts.bad))
	return nil
}

func sideBySide(c *check) error {
	a, err := c.own()
	if err != nil {
		return err
	}
	b, err := c.fresh()
	if err != nil {
		return err
	}
	reqs := c.long(2, 32)
	want, err := a.generate(c, reqs...)
	if err != nil {
		return err
	}
	calls := b.background(c, c.long(2, longAnswer/2)...)
	if err := b.running(c, 1, calls); err != nil {
		return err
	}
	if err := a.close(); err != nil {
		return fmt.Errorf("the first of two engines: %w", err)
	}
	if err := wait(c, calls); err != nil {
		return err
	}
	for _, x := range calls {
		if x.err != nil {
			return fmt.Errorf("the second of two engines failed when the first was ended: %w", x.err)
		}
	}
	got, err := b.generate(c, reqs...)
	if err != nil {
		return err
	}
	if d := c.s.difference(reqs, want, got); d != "" {
		return errors.New("two engines answer differently: " + d)
	}
	return nil
}
