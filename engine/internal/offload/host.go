package offload

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/enginetest/enginetest/engine/internal/cpu"
)

// Errors of [Host].
var (
	ErrFull = errors.New("offload: every block of host memory is in a transfer")
	ErrGone = errors.New("offload: the block is not there any more")
)

// Host keeps blocks in host memory: one private mapping, which no other process sees and which goes
// with this one however it ends. The least recently used block makes room for a new one; a block in
// a transfer stays.
type Host struct {
	buffer *cpu.Buffer
	memory []byte
	size   int

	mu    sync.Mutex
	index map[Key]*entry
	lru   *list.List // of *entry, all that can be loaded; used last is in front
	free  []int      // slots
}

// entry is one block: it can be loaded once it is in the list.
type entry struct {
	key   Key
	slot  int
	loads int // under way
	place *list.Element
}

// NewHost takes room for as many blocks of size bytes as fit into bytes.
func NewHost(alloc *cpu.Allocator, bytes, size int64) (*Host, error) {
	n := bytes / size
	if n == 0 {
		return nil, fmt.Errorf("offload: %d bytes of host memory hold no KV block, which has %d", bytes, size)
	}
	b, err := alloc.Alloc("kv_offload", n*size)
	if err != nil {
		return nil, err
	}
	h := &Host{buffer: b, memory: b.Bytes(), size: int(size)}
	h.clear(int(n))
	return h, nil
}

func (h *Host) clear(slots int) {
	h.index, h.lru, h.free = map[Key]*entry{}, list.New(), make([]int, slots)
	for i := range h.free {
		h.free[i] = slots - 1 - i
	}
}

func (h *Host) bytes(e *entry) []byte { return h.memory[e.slot*h.size : (e.slot+1)*h.size] }

// Store implements [Connector].
func (h *Host) Store(ctx context.Context, key Key, read func([]byte) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	e, err := h.reserve(key)
	if e == nil {
		return err
	}
	err = read(h.bytes(e))
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		delete(h.index, key)
		h.free = append(h.free, e.slot)
		return err
	}
	e.place = h.lru.PushFront(e)
	return nil
}

// reserve finds a slot for a new block; nil when the block is there, or on its way.
func (h *Host) reserve(key Key) (*entry, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.index[key] != nil {
		return nil, nil
	}
	if len(h.free) == 0 && !h.evict() {
		return nil, ErrFull
	}
	last := len(h.free) - 1
	e := &entry{key: key, slot: h.free[last]}
	h.free = h.free[:last]
	h.index[key] = e
	return e, nil
}

// evict frees the slot of the least recently used block that is in no transfer.
func (h *Host) evict() bool {
	for at := h.lru.Back(); at != nil; at = at.Prev() {
		if e := at.Value.(*entry); e.loads == 0 {
			h.lru.Remove(at)
			delete(h.index, e.key)
			h.free = append(h.free, e.slot)
			return true
		}
	}
	return false
}

// find looks a block up that can be loaded, and counts as a use of it; the caller holds the lock.
func (h *Host) find(key Key) *entry {
	e := h.index[key]
	if e == nil || e.place == nil {
		return nil
	}
	h.lru.MoveToFront(e.place)
	return e
}

// Load implements [Connector].
func (h *Host) Load(ctx context.Context, key Key, write func([]byte) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h.mu.Lock()
	e := h.find(key)
	if e == nil {
		h.mu.Unlock()
		return ErrGone
	}
	e.loads++
	h.mu.Unlock()
	defer func() { // after a panic too
		h.mu.Lock()
		e.loads--
		h.mu.Unlock()
	}()
	return write(h.bytes(e))
}

// Has implements [Connector].
func (h *Host) Has(key Key) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.find(key) != nil
}

// Reset implements [Connector].
func (h *Host) Reset() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if busy := h.busy(); busy > 0 {
		return fmt.Errorf("offload: %d of %d blocks of host memory are in a transfer", busy, h.slots())
	}
	h.clear(h.slots())
	return nil
}

func (h *Host) slots() int { return len(h.index) + len(h.free) }

// busy counts the blocks in a transfer.
func (h *Host) busy() int {
	n := len(h.index) - h.lru.Len() // stores
	for at := h.lru.Front(); at != nil; at = at.Next() {
		if at.Value.(*entry).loads > 0 {
			n++
		}
	}
	return n
}

// Usage implements [Connector].
func (h *Host) Usage() (blocks, capacity int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lru.Len(), h.slots()
}

// Close implements [Connector].
func (h *Host) Close() error {
	if err := h.Reset(); err != nil {
		return err
	}
	return h.buffer.Free()
}
