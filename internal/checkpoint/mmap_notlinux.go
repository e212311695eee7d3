//go:build unix && !linux

package checkpoint

func adviseHuge([]byte) {}
