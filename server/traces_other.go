//go:build !linux

package server

import "github.com/enginetest/enginetest/internal/proc"

// traces are what a server's processes use outside of themselves. This system does not show them.
type traces struct{ ports []int }

func newTraces() *traces { return &traces{} }

func (t *traces) observe(*proc.Family) {}

func (t *traces) left() []leftover { return nil }
