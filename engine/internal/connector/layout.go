package connector

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// The file: a page of header, a row for each place, and the places themselves.
const (
	magic    = 0x3130766b74676e65 // "engtkv01", the layout's version at its end
	pageSize = 4096
	rowSize  = int64(unsafe.Sizeof(row{}))
	mostWays = 16 // places where a block may be
)

// header is the first page. Only who is alone writes what is not atomic.
type header struct {
	magic      uint64
	ready      atomic.Uint64 // 1 once the rest holds
	blockBytes int64
	slots      int64
	model      [32]byte
	clock      atomic.Uint64 // counts what is published, used and forgotten
	blocks     atomic.Int64  // published; a process that is killed may leave it one too high
}

// firstPage is the header as it is read and written.
type firstPage struct {
	header
	_ [pageSize - unsafe.Sizeof(header{})]byte
}

func (p *firstPage) bytes() []byte { return (*[pageSize]byte)(unsafe.Pointer(p))[:] }

// row describes a place. Its word says who may touch the rest.
type row struct {
	word atomic.Uint64 // state, owner and a number that grows with each change
	key  [4]atomic.Uint64
	sum  atomic.Uint64 // checksum of key and block
	born atomic.Uint64 // the clock when it was published
	used atomic.Uint64 // the clock when it was used last
	_    [8]uint64
}

// States of a place, in the lowest bits of its word.
const (
	empty   = 0
	writing = 1 // by its owner
	ready   = 2

	stateBits = 8
	ownerBits = 8
)

func state(word uint64) uint64 { return word & (1<<stateBits - 1) }

func owner(word uint64) int { return int(word >> stateBits & (1<<ownerBits - 1)) }

// next is the word that follows another one.
func next(word, state uint64, owner int) uint64 {
	count := word >> (stateBits + ownerBits)
	return (count+1)<<(stateBits+ownerBits) | uint64(owner)<<stateBits | state
}

// geometry is what the sizes of a segment follow from.
type geometry struct{ blockBytes, slots int64 }

// geometryFor has as many places as fit into bytes.
func geometryFor(bytes, blockBytes int64) (geometry, error) {
	n := bytes / blockBytes
	if n == 0 {
		return geometry{}, fmt.Errorf("connector: %d bytes hold no KV block, which has %d", bytes, blockBytes)
	}
	for n%sets(n) != 0 {
		n--
	}
	return geometry{blockBytes, n}, nil
}

// sets is into how many sets of places n of them are divided. A block may be in one set only.
func sets(n int64) int64 { return (n + mostWays - 1) / mostWays }

func (g geometry) stride() int64 { return (g.blockBytes + 63) / 64 * 64 }

// places is where the blocks begin.
func (g geometry) places() int64 {
	return (pageSize + g.slots*rowSize + pageSize - 1) / pageSize * pageSize
}

// size is the file's.
func (g geometry) size() int64 {
	return (g.places() + g.slots*g.stride() + pageSize - 1) / pageSize * pageSize
}

// valid reports whether a header's sizes are those of a file of this size.
func (g geometry) valid(size int64) bool {
	const most = 1 << 46
	if g.blockBytes <= 0 || g.slots <= 0 || g.slots > most/rowSize || g.blockBytes > most/g.slots {
		return false
	}
	return g.size() == size && g.slots%sets(g.slots) == 0
}

// set is the range of places where a block may be.
func (g geometry) set(k [4]uint64) (first, n int64) {
	count := sets(g.slots)
	n = g.slots / count
	return int64(k[0]%uint64(count)) * n, n
}
