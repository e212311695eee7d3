//go:build !linux

package heapdump

import "errors"

// MaxHeap is the largest heap that is dumped.
const MaxHeap = 0

// Take is for Linux only.
func Take() (*Dump, error) {
	return nil, errors.New("heapdump: retention paths are found on Linux only")
}
