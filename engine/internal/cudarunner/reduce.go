package cudarunner

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
)

const (
	maxRanks     = 8       // as in the kernels
	blockFloats  = 4096    // that a block of reduce_blocks has
	mostFloats   = 8 << 20 // of a message; more are several
	wordFloats   = 1 << 17 // that go in words of reduce_words at most
	sharedFloats = 1 << 15 // that, when ranks share a device; and an eighth of a message
	patience     = time.Minute
	mailboxOwner = "all_reduce"
)

// link is what the ranks of a group reduce over: their mailboxes, and NCCL for messages from
// ncclFrom on.
type link struct {
	runners  []*Runner // by rank
	shared   bool      // a device has two ranks
	patience time.Duration
	broken   atomic.Bool

	ncclFrom int // floats; 0: never
	nccl     *communicators
}

var _ modelrunner.Link = (*link)(nil)

// mailbox is what the other ranks write to.
type mailbox struct {
	memory         *cuda.Memory
	state          *cuda.Pinned // see Comm in the kernels
	capacity, fast int          // floats

	mu   sync.Mutex // state is there
	free bool
}

// Values of a mailbox's state; stateWaited+r: this rank gave up waiting for rank r.
const (
	stateRuns, stateBroken, stateWaited = 0, 1, 2
)

// reducer adds up a rank's products with those of the others.
type reducer struct {
	*products
	link    *link // to the other ranks; nil: there are none
	mailbox *mailbox
}

// makeMailbox takes the memory that the other ranks write to, all zero. Every rank's is of the same
// size.
func (r *reducer) makeMailbox() error {
	b, row, most, fast := &mailbox{}, r.work.h.kb*32, mostFloats, wordFloats
	if r.link.shared { // all blocks have to run at once
		most, fast = 8*sharedFloats, sharedFloats
	}
	b.capacity = roundUp(max(row, min(r.work.tokens*row, most)), blockFloats)
	b.fast = min(b.capacity, fast)
	size := len(r.link.runners)
	flags := roundUp(size*(b.capacity/blockFloats+2)*8, 256)
	bytes := int64(256 + flags + 2*(size-1)*(8*b.fast+4*b.capacity))
	var err error
	if b.memory, err = r.alloc(mailboxOwner, bytes); err != nil {
		return err
	}
	if b.state, err = r.worker.AllocPinned(mailboxOwner, 256); err != nil {
		return err
	}
	r.own(mailboxOwner, 256, b.close)
	clear(b.state.Bytes())
	r.mailbox = b
	return b.memory.Fill(0, bytes, 0, r.stream)
}

func (b *mailbox) word() *int32 { return (*int32)(unsafe.Pointer(&b.state.Bytes()[0])) }

// set tells the kernels that wait, and those to come.
func (b *mailbox) set(state int32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.free {
		atomic.StoreInt32(b.word(), state)
	}
}

func (b *mailbox) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free = true
	return b.state.Free()
}

// reduce adds a product of this many rows, that this and the other ranks have in this many parts
// each in work.y, to rows of the workspace: those of the residual stream, mostly.
func (r *reducer) reduce(to int64, rows, parts int, bias int64) error {
	w, b, ld := &r.work, r.mailbox, r.work.h.kb*32
	stride := int64(rows * ld)
	if from := r.link.ncclFrom; from > 0 && rows*ld >= from {
		return r.reduceNCCL(to, rows*ld, parts, bias)
	}
	for at, most := 0, b.capacity/ld; at < rows; at += most {
		n, offset := min(most, rows-at)*ld, cuda.DevicePtr(4*at*ld)
		name, grid, threads := "reduce_words", (n/4+127)/128, 128
		if n > b.fast {
			name, grid, threads = "reduce_blocks", (n+blockFloats-1)/blockFloats, 256
		}
		args := append(r.comm(), w.ptr(to)+offset, w.ptr(w.y)+offset, parts, stride, r.at(bias), ld, n/4)
		if err := r.run(name, cuda.Dim{X: grid}, threads, 0, args...); err != nil {
			return err
		}
	}
	return nil
}

// meet waits for the other ranks, if there are any.
func (r *reducer) meet() error {
	if r.link == nil {
		return nil
	}
	return r.run("meet", cuda.Dim{X: 1}, 32, 0, r.comm()...)
}

// comm are the arguments of every kernel that waits for others.
func (r *reducer) comm() []any {
	args := make([]any, 0, 32)
	args = append(args, r.mailbox.memory.Ptr())
	for i := range maxRanks {
		box := cuda.DevicePtr(0)
		if i < len(r.link.runners) {
			box = r.link.runners[i].group.mailbox.memory.Ptr()
		}
		args = append(args, box)
	}
	return append(args, r.share.Rank, len(r.link.runners), r.mailbox.capacity, r.mailbox.fast, r.mailbox.state.Ptr(),
		r.link.patience.Nanoseconds())
}

// logitsAt is where this rank's logits go: their place among all in the first rank's workspace.
func (r *reducer) logitsAt() cuda.DevicePtr {
	if r.link == nil {
		return r.work.ptr(r.work.logits)
	}
	w := &r.link.runners[0].work
	return w.ptr(w.logits) + cuda.DevicePtr(4*r.share.Vocab.Lo)
}

// Abort implements [modelrunner.Link].
func (l *link) Abort() {
	l.broken.Store(true)
	for _, r := range l.runners {
		if r != nil && r.group.mailbox != nil {
			r.group.mailbox.set(stateBroken)
		}
	}
	if l.nccl != nil {
		l.nccl.abort()
	}
}

// Reset implements [modelrunner.Link]: after a broken step the ranks may have come differently far.
// What NCCL aborted stays so.
func (l *link) Reset() {
	if !l.broken.Load() {
		return
	}
	for _, r := range l.runners {
		if r.group.mailbox == nil || r.worker.Do(func() error {
			return r.group.mailbox.memory.Fill(0, r.group.mailbox.memory.Size(), 0, r.stream)
		}) != nil {
			return // stays broken
		}
	}
	for _, r := range l.runners {
		if r.worker.Do(func() error { return r.stream.Synchronize() }) != nil {
			return
		}
	}
	for _, r := range l.runners {
		r.group.mailbox.set(stateRuns)
	}
	l.broken.Store(false)
}

// Waiting reports whether a rank has queued its step and waits for the device, as one does whose
// kernels wait for another rank.
func (l *link) Waiting(rank int) bool {
	r := l.runners[rank]
	if r == nil {
		return false
	}
	_, call := r.worker.Busy()
	return call == "cuStreamSynchronize"
}

// settle ends a rank's step. A kernel that gave up waiting ends like others: the mailbox tells.
// After a failure nothing that the rank has queued may still write to the others when they go on.
func (r *reducer) settle(err *error) {
	l, v := r.link, recover()
	if *err == nil && v == nil {
		*err = r.waited()
	}
	if *err == nil && v == nil {
		return
	}
	l.Abort()
	if r.worker.Err() == nil {
		*err = errors.Join(*err, r.worker.Do(r.stream.Synchronize))
	}
	if v != nil {
		panic(v)
	}
}

// waited is the error of a rank whose kernels gave up.
func (r *reducer) waited() error {
	switch state := atomic.LoadInt32(r.mailbox.word()); {
	case state >= stateWaited:
		other := r.link.runners[state-stateWaited]
		return &WaitError{Rank: other.share.Rank, Device: nameOf(other.options.Device), For: r.link.patience}
	case state == stateBroken:
		return modelrunner.ErrAborted
	}
	return nil
}

// WaitError says that a rank waited for another one, on the device, longer than it should.
type WaitError struct {
	Rank   int // that did not come
	Device string
	For    time.Duration
}

func (e *WaitError) Error() string {
	return fmt.Sprintf("cudarunner: waited %s in an all-reduce for rank %d (%s)", e.For, e.Rank, e.Device)
}
