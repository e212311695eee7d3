//go:build !linux

package forkproc

type snapshot struct{}

func (*child) snapshot() snapshot { return snapshot{} }

func (*child) newFiles(snapshot) []leftover { return nil }

func (*child) tempFiles() []leftover { return nil }
