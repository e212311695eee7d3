//go:build !linux

package forkproc

import "github.com/enginetest/enginetest/internal/proc"

type snapshot struct{}

func (*child) snapshot() snapshot { return snapshot{} }

func (*child) leftovers(snapshot, []proc.Process, Status) []string { return nil }
