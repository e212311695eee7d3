//go:build linux

package engine

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// onLog is a log handler that calls a function, as a user's may: also one that asks the engine.
type onLog func(slog.Record)

func (f onLog) Enabled(context.Context, slog.Level) bool      { return true }
func (f onLog) Handle(_ context.Context, r slog.Record) error { f(r); return nil }
func (f onLog) WithAttrs([]slog.Attr) slog.Handler            { return f }
func (f onLog) WithGroup(string) slog.Handler                 { return f }

// The log line comes before Done is closed: there the state is Failed already, and so must the error be there.
func TestWhoSeesFailedSeesTheError(t *testing.T) {
	for _, core := range []Core{InProcess, ChildProcess} {
		for _, f := range []Fault{{Point: FaultForward, Action: ActError, After: 3}, {Point: FaultForward, Action: ActExit, After: 3}} {
			if core == InProcess && f.Action == ActExit {
				continue
			}
			t.Run(core.String()+" "+string(f.Action), func(t *testing.T) {
				type seen struct {
					state State
					err   error
				}
				var e *Engine
				got := make(chan seen, 1)
				e, err := Open(t.Context(), Config{Model: tinyLlama, Core: core, Faults: []Fault{f}, Logger: slog.New(onLog(func(r slog.Record) {
					if r.Message == "engine failed" {
						got <- seen{e.State(), e.Err()}
					}
				}))})
				require.NoError(t, err)
				defer func() { require.NoError(t, e.Shutdown(t.Context())) }()
				_, err = e.Generate(t.Context(), Request{PromptTokenIDs: ids(5, 0), Sampling: SamplingParams{MaxTokens: 100, IgnoreEOS: true}})
				require.ErrorIs(t, err, ErrEngineDead)
				at := <-got
				assert.Equal(t, Failed, at.state)
				require.ErrorIs(t, at.err, ErrEngineDead)
				assert.Equal(t, err.Error(), at.err.Error())
			})
		}
	}
}

// A message may be on its way while the core fails: its numbers say Failed, and nobody can know yet of what.
func TestFailedComesWithItsCause(t *testing.T) {
	c := &child{state: Running, log: quiet, done: make(chan struct{})}
	c.take(&news{Stats: Stats{State: Sleeping}})
	c.take(&news{Stats: Stats{State: Failed, Steps: 7}})
	assert.Equal(t, Sleeping, c.counters().State)
	assert.Equal(t, int64(7), c.counters().Steps)
	require.NoError(t, c.err())
	c.take(&news{Stats: Stats{State: Failed}, Failed: pack(ErrInjected)})
	assert.Equal(t, Failed, c.counters().State)
	require.ErrorIs(t, c.err(), ErrEngineDead)
}
