//go:build !linux

package proc

func oomKills() map[string]int { return nil }

func oomRise(_, _ map[string]int) string { return "" }
