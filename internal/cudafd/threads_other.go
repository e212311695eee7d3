//go:build !linux

package cudafd

func waitedFor() map[string]string { return nil }
