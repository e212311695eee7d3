// Package connector shares KV blocks between engines: a [Segment] is a file that several of them
// map, in one process or in many. What one engine has computed, another one loads, as with vLLM's
// Nixl connector and LMCache.
//
// A segment has no server and no lock that a step could wait for. Each place for a block has a
// state word: a writer claims the place with it, writes, and publishes; a reader copies the bytes,
// and takes them for the block only if the word is still the same afterwards and their checksum is
// right. So a writer that is killed in the middle of a block leaves nothing that is ever read, and a
// reader that is killed holds no one up.
//
// Who has a segment open is known by locks on bytes of the file, which the kernel releases however a
// process ends. The last one to close a segment removes the file; a file that was left behind
// because all of them were killed starts anew with the next one that opens it.
//
// What it says when something fails:
//
//	connector: /dev/shm/kv: its blocks have 32768 bytes, and those of this engine 16384
//	connector: /dev/shm/kv: not a KV segment: it begins with "#!/bin/sh"
//	connector: block 9f86d081 is damaged: its checksum is 1c291ca3, want 8a9136aa
package connector

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/enginetest/enginetest/engine/internal/kvcache"
	"github.com/enginetest/enginetest/ledger"
)

// Owner is the segment's in the ledger.
const Owner = "kv_connector"

// Errors of a [Segment].
var (
	ErrFull   = errors.New("connector: every place for the block is being written")
	ErrGone   = errors.New("connector: the block is not there any more")
	ErrClosed = errors.New("connector: the segment is closed")
)

// Key names a block's contents.
type Key = kvcache.Hash

// Options say which segment to open, and what its blocks are.
type Options struct {
	Path       string
	Bytes      int64    // for blocks; 0: what a segment has, or Default in a new one
	Default    int64    // at least a block
	BlockBytes int64    // of each block
	Model      [32]byte // names what the blocks depend on besides their keys: weights, layout
	Ledger     *ledger.Ledger
	// Before is called before the segment is mapped; its error is Open's.
	Before func(owner string, bytes int64) error
}

// bytes of blocks that a new segment has.
func (o *Options) bytes() int64 { return cmp.Or(o.Bytes, o.Default) }

// MismatchError says that a file is no segment for an engine.
type MismatchError struct{ Path, Why string }

func (e *MismatchError) Error() string { return fmt.Sprintf("connector: %s: %s", e.Path, e.Why) }

// DamagedError says that a published block has other bytes than those that were published.
type DamagedError struct {
	Key       Key
	Got, Want uint32 // checksums
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("connector: block %x is damaged: its checksum is %08x, want %08x", e.Key[:4], e.Got, e.Want)
}
