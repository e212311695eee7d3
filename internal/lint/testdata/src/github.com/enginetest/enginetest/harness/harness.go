// Package harness stands in for the real one where analyzers are tested without modules.
package harness

import "context"

type TB interface{ Cleanup(func()) }

type Engine interface {
	Shutdown(context.Context) error
}

type Option func()

type Runner struct{}

func Start[E Engine](t TB, open func(context.Context) (E, error), opts ...Option) *Runner { return nil }

func Allow(pattern, reason string) Option { return nil }

func WithoutDeviceMemory(reason string) Option { return nil }

func WithoutHost(reason string) Option { return nil }
