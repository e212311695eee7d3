//go:build !linux

package forkproc

import "github.com/enginetest/enginetest/internal/proc"

type snapshot struct{}

func (*child) snapshot() snapshot { return snapshot{} }

func (*child) newFiles(snapshot) (mine, unknown []leftover) { return nil, nil }

func (*child) tempFiles() []leftover { return nil }

type witness struct{}

func newWitness() *witness { return &witness{} }

func (*witness) blind() bool { return false }

func (*witness) follow(*proc.Family) {}

func (*witness) close() {}

func (*witness) look() {}

func (*witness) heard(string, int) {}

func watchOwn() {}

func tellMade() {}
