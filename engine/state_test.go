//go:build linux

package engine

import (
	"context"
	"log/slog"
	"testing"

	"github.com/enginetest/enginetest/engine/internal/wire"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// onLog is a log handler that calls a function, as a user's may: also one that asks the engine.
type onLog func(slog.Record)

func (f onLog) Enabled(context.Context, slog.Level) bool      { return true }
func (f onLog) Handle(_ context.Context, r slog.Record) error { f(r); return nil }
func (f onLog) WithAttrs([]slog.Attr) slog.Handler            { return f }
func (f onLog) WithGroup(string) slog.Handler                 { return f }

// The log line comes before Done is closed: there the state is Failed already, and so must the
// error be there.
func TestWhoSeesFailedSeesTheError(t *testing.T) {
	for _, core := range []Core{InProcess, ChildProcess} {
		for _, f := range []llm.Fault{
			{Point: llm.FaultForward, Action: llm.ActError, After: 3},
			{Point: llm.FaultForward, Action: llm.ActExit, After: 3},
		} {
			if core == InProcess && f.Action == llm.ActExit {
				continue
			}
			t.Run(core.String()+" "+string(f.Action), func(t *testing.T) {
				type seen struct {
					state State
					err   error
				}
				var e *Engine
				got := make(chan seen, 1)
				e, err := Open(t.Context(), Config{
					Model: tinyLlama, Core: core, Faults: []llm.Fault{f},
					Logger: slog.New(onLog(func(r slog.Record) {
						if r.Message == "engine failed" {
							got <- seen{e.State(), e.Err()}
						}
					})),
				})
				require.NoError(t, err)
				defer func() { require.NoError(t, e.Shutdown(t.Context())) }()
				_, err = e.Generate(t.Context(), Request{
					PromptTokenIDs: ids(5, 0),
					Sampling:       SamplingParams{MaxTokens: 100, IgnoreEOS: true},
				})
				require.ErrorIs(t, err, llm.ErrEngineDead)
				at := <-got
				assert.Equal(t, Failed, at.state)
				require.ErrorIs(t, at.err, llm.ErrEngineDead)
				assert.Equal(t, err.Error(), at.err.Error())
			})
		}
	}
}

// Whatever a failed core says first, its cause is with it.
func TestFailedComesWithItsCause(t *testing.T) {
	here, there, err := wire.Pair()
	require.NoError(t, err)
	defer here.Close()
	link, err := wire.FromFile(there)
	require.NoError(t, err)
	require.NoError(t, there.Close())
	s := &coreServer{link: link, core: newCore(Config{Logger: quiet})}
	s.core.state = Running
	s.core.fail(llm.ErrInjected)
	s.flush()
	require.NoError(t, link.Close())

	c := &child{state: Running, log: quiet, link: here, done: make(chan struct{}), silent: make(chan struct{})}
	c.listen()
	assert.Equal(t, Failed, c.counters().State)
	require.ErrorIs(t, c.err(), llm.ErrEngineDead)
	require.ErrorIs(t, c.err(), llm.ErrInjected)
}
