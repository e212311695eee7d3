package connector

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"unsafe"
)

var table = crc32.MakeTable(crc32.Castagnoli)

// checksum covers the key too: a block under another's name is as wrong as a damaged one.
func checksum(key Key, block []byte) uint32 {
	return crc32.Update(crc32.Checksum(key[:], table), table, block)
}

func words(key Key) (k [4]uint64) {
	for i := range k {
		k[i] = binary.LittleEndian.Uint64(key[8*i:])
	}
	return k
}

func (s *Segment) header() *header { return (*header)(unsafe.Pointer(unsafe.SliceData(s.memory))) }

func (s *Segment) row(i int64) *row { return (*row)(unsafe.Pointer(&s.memory[pageSize+i*rowSize])) }

// place is where block i lies.
func (s *Segment) place(i int64) []byte {
	at := s.places() + i*s.stride()
	return s.memory[at : at+s.blockBytes : at+s.blockBytes]
}

func (s *Segment) tick() uint64 { return s.header().clock.Add(1) }

// Store publishes a block, unless it is there. The least recently used of the places where it may be
// makes room for it; one that a process writes stays. While read runs, no one reads the place, also
// when this process ends in it.
func (s *Segment) Store(ctx context.Context, key Key, read func([]byte) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.memory == nil {
		return ErrClosed
	}
	k := words(key)
	if _, _, ok := s.find(k); ok {
		return nil
	}
	i, word, ok := s.claim(k)
	if !ok {
		return ErrFull
	}
	r, published := s.row(i), false
	defer func() { // after a panic too
		if !published {
			r.word.CompareAndSwap(word, next(word, empty, 0))
		}
	}()
	for j := range k {
		r.key[j].Store(k[j])
	}
	block := s.place(i)
	if err := read(block); err != nil {
		return err
	}
	r.sum.Store(uint64(checksum(key, block)))
	now := s.tick()
	r.born.Store(now)
	r.used.Store(now)
	if published = r.word.CompareAndSwap(word, next(word, ready, s.id)); published {
		s.header().blocks.Add(1)
	}
	return nil
}

// find looks for a published block that this segment's user may see.
func (s *Segment) find(k [4]uint64) (i int64, word uint64, ok bool) {
	first, n := s.set(k)
	for i := first; i < first+n; i++ {
		r := s.row(i)
		word := r.word.Load()
		if state(word) != ready || r.key[0].Load() != k[0] || r.key[1].Load() != k[1] || r.key[2].Load() != k[2] ||
			r.key[3].Load() != k[3] || r.born.Load() <= s.since.Load() {
			continue
		}
		if r.word.Load() == word {
			return i, word, true
		}
	}
	return 0, 0, false
}

// claim takes a place for a block. Others may claim at the same time: after a few of them it is not
// worth it.
func (s *Segment) claim(k [4]uint64) (i int64, word uint64, ok bool) {
	for range mostWays {
		i, word, ok := s.candidate(k)
		if !ok {
			return 0, 0, false
		}
		mine := next(word, writing, s.id)
		if s.row(i).word.CompareAndSwap(word, mine) {
			if state(word) == ready {
				s.header().blocks.Add(-1)
			}
			return i, mine, true
		}
	}
	return 0, 0, false
}

// candidate is the best place for a block: an empty one, or one whose writer has died, else the
// least recently used.
func (s *Segment) candidate(k [4]uint64) (i int64, word uint64, ok bool) {
	var oldest uint64
	first, n := s.set(k)
	for at := first; at < first+n; at++ {
		r := s.row(at)
		w := r.word.Load()
		switch used := r.used.Load(); {
		case state(w) == empty, state(w) == writing && owner(w) != s.id && !s.alive(owner(w)):
			return at, w, true
		case state(w) == ready && (!ok || used < oldest):
			i, word, oldest, ok = at, w, used, true
		}
	}
	return i, word, ok
}

// Has reports whether a block can be loaded now, and counts as a use of it.
func (s *Segment) Has(key Key) bool {
	if s.memory == nil {
		return false
	}
	i, _, ok := s.find(words(key))
	if ok {
		s.row(i).used.Store(s.tick())
	}
	return ok
}

// Load returns write a copy of a block. Errors: [ErrGone], also when the block was evicted
// meanwhile, or a [*DamagedError], and then it is not found again.
func (s *Segment) Load(ctx context.Context, key Key, write func([]byte) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.memory == nil {
		return ErrClosed
	}
	i, word, ok := s.find(words(key))
	if !ok {
		return ErrGone
	}
	r, block := s.row(i), s.buffer()
	defer s.putBack(block)
	copy(block, s.place(i))
	want := uint32(r.sum.Load())
	// An exchange, and no load: nothing that was read before can be read after it.
	if !r.word.CompareAndSwap(word, word) {
		return ErrGone
	}
	if got := checksum(key, block); got != want {
		s.drop(i, word)
		return &DamagedError{Key: key, Got: got, Want: want}
	}
	r.used.Store(s.tick())
	return write(block)
}

func (s *Segment) buffer() []byte {
	select {
	case b := <-s.buffers:
		return b
	default:
		return make([]byte, s.blockBytes)
	}
}

func (s *Segment) putBack(b []byte) {
	select {
	case s.buffers <- b:
	default:
	}
}

// drop empties a place whose word is still this one.
func (s *Segment) drop(i int64, word uint64) {
	if s.row(i).word.CompareAndSwap(word, next(word, empty, 0)) && state(word) == ready {
		s.header().blocks.Add(-1)
	}
}

// Reset drops the blocks that this segment's user has published, for everyone, and hides from it
// those that others have. They publish again what they compute again.
func (s *Segment) Reset() error {
	if s.memory == nil {
		return ErrClosed
	}
	s.since.Store(s.tick())
	for i := range s.slots {
		r := s.row(i)
		if w := r.word.Load(); state(w) == ready && owner(w) == s.id && r.born.Load() > s.joined {
			s.drop(i, w)
		}
	}
	return nil
}

// sweep empties the places that a user with the same number had begun to write when it died.
func (s *Segment) sweep() {
	for i := range s.slots {
		if w := s.row(i).word.Load(); state(w) == writing && owner(w) == s.id {
			s.drop(i, w)
		}
	}
}

// Usage is the number of blocks published, by everyone, and of those that there is room for.
func (s *Segment) Usage() (blocks, capacity int) {
	if s.memory == nil {
		return 0, 0
	}
	return int(max(s.header().blocks.Load(), 0)), int(s.slots)
}
