// Package leakcheck stands in for the real one where analyzers are tested without modules.
package leakcheck

type TB interface{ Cleanup(func()) }

type Option func()

type Guarded struct{}

func Guard(t TB, opts ...Option) *Guarded { return nil }

func Allow(pattern, reason string) Option { return nil }
