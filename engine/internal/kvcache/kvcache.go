// Package kvcache tracks the blocks of a paged KV cache: which block belongs to which sequence, and
// which blocks hold a prefix that another sequence can use again. It never touches the memory
// itself.
//
// The rules are vLLM's. Only full blocks are shared; a block is found by the chained hash of its
// tokens and all tokens before it. Block tables only grow, so two equal blocks both stay. A hit is
// capped at n-1 of n tokens, because the last one must be computed for its logits. Freed blocks
// with a prefix are reused last, least recently freed first; freed blocks without one are reused
// first.
package kvcache

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

const none = int32(-1)

// Hash names a full block: its tokens and everything before it.
type Hash [sha256.Size]byte

// block is one block's books. A block is free exactly when refs is 0, and then it is in the free
// list.
type block struct {
	refs       int32
	cached     bool // hash is set, and the block is in Cache.index
	hash       Hash
	prev, next int32 // in the free list
	same       int32 // next block with an equal hash
}

// Table is one sequence's block table: block i holds the positions [i*BlockSize, (i+1)*BlockSize).
// The zero value is empty.
type Table struct {
	Salt   []byte // what a prefix depends on besides its tokens; set before the first use
	blocks []int32
	// of the sequence's full blocks, as far as they were needed; they outlive Free, since the
	// tokens do not change
	hashes []Hash
	known  int // leading blocks that were offered to the prefix cache
}

// Blocks is the table itself: valid until the next call for this Table, not to be changed.
func (t *Table) Blocks() []int32 { return t.blocks }

// Stats are a cache's counters.
type Stats struct {
	Blocks, Used, Cached int // all; in use by a sequence; holding a prefix that a new sequence can hit
	Queries, Hits        int // tokens looked up, and tokens found
}

// InUseError says that the prefix cache could not be reset.
type InUseError struct{ Used, Blocks int }

func (e *InUseError) Error() string {
	return fmt.Sprintf("kvcache: %d of %d blocks are in use by running sequences", e.Used, e.Blocks)
}

// Cache is the pool of blocks. It is not safe for concurrent use.
type Cache struct {
	blockSize int
	prefix    bool
	blocks    []block
	head      int32 // of the free list: reused first
	tail      int32
	free      int
	index     map[Hash]int32 // a block with this hash; more through block.same
	cached    int
	queries   int
	hits      int
	scratch   []byte
}

// New tracks a cache of this many blocks of blockSize tokens; without prefix nothing is
// shared.
func New(blocks, blockSize int, prefix bool) *Cache {
	c := &Cache{
		blockSize: blockSize, prefix: prefix, blocks: make([]block, blocks), head: none, tail: none,
		index: map[Hash]int32{},
	}
	for i := range c.blocks {
		c.blocks[i].same = none
		c.pushBack(int32(i))
	}
	return c
}

// BlockSize is the number of tokens in a block.
func (c *Cache) BlockSize() int { return c.blockSize }

// Capacity is the number of tokens that the whole cache holds.
func (c *Cache) Capacity() int { return len(c.blocks) * c.blockSize }

// Stats returns the counters.
func (c *Cache) Stats() Stats {
	return Stats{
		Blocks: len(c.blocks), Used: len(c.blocks) - c.free, Cached: c.cached, Queries: c.queries,
		Hits: c.hits,
	}
}

// Admit starts a sequence with an empty table: it takes the blocks of the longest cached prefix of
// tokens, when read is set, and room for up to limit tokens after it, and says how many tokens the
// prefix has. With too few free blocks nothing changes and ok is false.
func (c *Cache) Admit(t *Table, tokens []int32, limit int, read bool) (hit int, ok bool) {
	blocks := 0
	if read && c.prefix {
		blocks = c.match(t, tokens)
	}
	hit = blocks * c.blockSize
	need := c.blocksFor(min(hit+limit, len(tokens))) - blocks
	free := c.free
	for _, b := range t.blocks { // a hit on a free block takes it out of the free list
		if c.blocks[b].refs == 0 {
			free--
		}
	}
	if need > free {
		t.blocks = t.blocks[:0]
		return hit, false
	}
	for _, b := range t.blocks {
		c.take(b)
	}
	t.known = blocks
	if read && c.prefix {
		c.queries += len(tokens)
		c.hits += hit
	}
	return hit, c.Grow(t, hit+min(limit, len(tokens)-hit))
}

// Keys returns the hashes of the blocks that a prefix of tokens can be hit in, and how many of them
// the cache has, from the first on. A sequence that is not admitted, and wants more of them from
// elsewhere, uses Reserve. The hashes are not to be changed.
func (c *Cache) Keys(t *Table, tokens []int32) (keys []Hash, cached int) {
	n := (len(tokens) - 1) / c.blockSize
	if !c.prefix || n == 0 {
		return nil, 0
	}
	c.hashOf(t, tokens, n-1)
	keys = t.hashes[:n:n]
	for cached < n {
		if _, ok := c.index[keys[cached]]; !ok {
			break
		}
		cached++
	}
	return keys, cached
}

// Reserve is Admit without a look at the counters: it gives the empty table the cached prefix and
// new blocks, n in all, for contents that come from elsewhere. Commit enters those that came, and
// Free leaves them in the prefix cache.
func (c *Cache) Reserve(t *Table, tokens []int32, n int) bool {
	queries, hits := c.queries, c.hits
	_, cached := c.Keys(t, tokens)
	_, ok := c.Admit(t, tokens, (n-cached)*c.blockSize, true)
	c.queries, c.hits = queries, hits
	return ok
}

// Hold keeps a block in use, and so as it is, until Release: a copy of it is being made.
func (c *Cache) Hold(b int32) { c.take(b) }

// Release undoes one Hold.
func (c *Cache) Release(b int32) {
	c.blocks[b].refs--
	c.giveBack(b)
}

// match fills the empty table with the blocks of the longest cached prefix, without taking them
// yet.
func (c *Cache) match(t *Table, tokens []int32) int {
	n := (len(tokens) - 1) / c.blockSize // at least the last token is computed
	for i := range n {
		b, ok := c.index[c.hashOf(t, tokens, i)]
		if !ok {
			break
		}
		t.blocks = append(t.blocks, b)
	}
	return len(t.blocks)
}

// Grow makes room for n tokens in all. With too few free blocks nothing changes and it answers
// false.
func (c *Cache) Grow(t *Table, n int) bool {
	need := c.blocksFor(n) - len(t.blocks)
	if need > c.free {
		return false
	}
	for range need {
		b := c.head
		c.forget(b)
		c.take(b)
		t.blocks = append(t.blocks, b)
	}
	return true
}

// Commit enters the full blocks of the first n tokens, which have been computed, in the prefix
// cache. It gives those that it had not been given before, and their hashes.
func (c *Cache) Commit(t *Table, tokens []int32, n int) (keys []Hash, blocks []int32) {
	if !c.prefix {
		return nil, nil
	}
	first := t.known
	for ; t.known < n/c.blockSize; t.known++ {
		b, h := t.blocks[t.known], c.hashOf(t, tokens, t.known)
		if c.blocks[b].cached {
			continue
		}
		same, ok := c.index[h]
		if !ok {
			same = none
		}
		c.blocks[b].hash, c.blocks[b].cached, c.blocks[b].same = h, true, same
		c.index[h] = b
		c.cached++
	}
	if first == t.known {
		return nil, nil
	}
	return t.hashes[first:t.known], t.blocks[first:t.known]
}

// Free releases the sequence's blocks. The last ones are reused first: a shorter prefix serves
// more sequences.
func (c *Cache) Free(t *Table) {
	for i := len(t.blocks) - 1; i >= 0; i-- {
		b := t.blocks[i]
		c.blocks[b].refs--
		c.giveBack(b)
	}
	t.blocks, t.known = t.blocks[:0], 0
}

// giveBack puts a block that no one uses any more in the free list.
func (c *Cache) giveBack(b int32) {
	switch {
	case c.blocks[b].refs > 0:
	case c.blocks[b].cached:
		c.pushBack(b)
	default:
		c.pushFront(b)
	}
}

// Reset forgets all prefixes; an [InUseError] when a sequence still uses a block.
func (c *Cache) Reset() error {
	if used := len(c.blocks) - c.free; used > 0 {
		return &InUseError{Used: used, Blocks: len(c.blocks)}
	}
	for i := range c.blocks {
		c.blocks[i].cached, c.blocks[i].same = false, none
	}
	clear(c.index)
	c.cached, c.queries, c.hits = 0, 0, 0
	return nil
}

func (c *Cache) blocksFor(tokens int) int { return (tokens + c.blockSize - 1) / c.blockSize }

// hashOf is the chained hash of the sequence's full block i.
func (c *Cache) hashOf(t *Table, tokens []int32, i int) Hash {
	for n := len(t.hashes); n <= i; n++ {
		buf := c.scratch[:0]
		if n > 0 {
			buf = append(buf, t.hashes[n-1][:]...)
		} else {
			buf = append(buf, t.Salt...)
		}
		for _, id := range tokens[n*c.blockSize : (n+1)*c.blockSize] {
			buf = binary.LittleEndian.AppendUint32(buf, uint32(id))
		}
		t.hashes = append(t.hashes, sha256.Sum256(buf))
		c.scratch = buf
	}
	return t.hashes[i]
}

// take adds a user to a block.
func (c *Cache) take(b int32) {
	if c.blocks[b].refs == 0 {
		c.unlink(b)
	}
	c.blocks[b].refs++
}

// forget takes a block out of the prefix cache, if it is in it.
func (c *Cache) forget(b int32) {
	blk := &c.blocks[b]
	if !blk.cached {
		return
	}
	if first := c.index[blk.hash]; first == b {
		if blk.same == none {
			delete(c.index, blk.hash)
		} else {
			c.index[blk.hash] = blk.same
		}
	} else {
		for c.blocks[first].same != b {
			first = c.blocks[first].same
		}
		c.blocks[first].same = blk.same
	}
	blk.cached, blk.same = false, none
	c.cached--
}

func (c *Cache) pushBack(b int32) {
	c.blocks[b].prev, c.blocks[b].next = c.tail, none
	if c.tail == none {
		c.head = b
	} else {
		c.blocks[c.tail].next = b
	}
	c.tail = b
	c.free++
}

func (c *Cache) pushFront(b int32) {
	c.blocks[b].prev, c.blocks[b].next = none, c.head
	if c.head == none {
		c.tail = b
	} else {
		c.blocks[c.head].prev = b
	}
	c.head = b
	c.free++
}

func (c *Cache) unlink(b int32) {
	p, n := c.blocks[b].prev, c.blocks[b].next
	if p == none {
		c.head = n
	} else {
		c.blocks[p].next = n
	}
	if n == none {
		c.tail = p
	} else {
		c.blocks[n].prev = p
	}
	c.free--
}
