package cudarunner

import (
	"errors"
	"math/bits"
	"unsafe"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/sample"
)

// staging is a step's inputs: filled in pinned host memory, copied to the device in one go. Words
// of 4 bytes.
type staging struct {
	host   *cuda.Pinned
	device *cuda.Memory
	tokens *cuda.Pinned // the drawn ones, written by a kernel or copied, and what was found for log-probabilities
}

// make takes room for this many bytes of inputs.
func (g *staging) make(r *device, bytes int64) error {
	if hook := r.options.Hooks.Allocate; hook != nil {
		if err := hook("staging", bytes); err != nil {
			return err
		}
	}
	var err error
	if g.tokens == nil {
		if g.tokens, err = r.worker.AllocPinned("staging", logitRows*(4+foundBytes)); err != nil {
			return err
		}
		clear(g.tokens.Bytes()) // the kernels of the stand-in for libcuda write none
		r.own("staging", logitRows*(4+foundBytes), g.tokens.Free)
		r.own("staging", bytes, g.free) // of what is there by then
	}
	if g.device, err = r.worker.Alloc("staging", bytes); err != nil {
		return err
	}
	g.host, err = r.worker.AllocPinned("staging", bytes)
	return err
}

func (g *staging) free() error {
	var errs []error
	if g.host != nil {
		errs = append(errs, g.host.Free())
	}
	if g.device != nil {
		errs = append(errs, g.device.Free())
	}
	g.host, g.device = nil, nil
	return errors.Join(errs...)
}

// addresses are where a step's inputs lie on the device.
type addresses struct {
	draws, rules, tokens, positions, slots, seqs, rows, tiles, tables, edits cuda.DevicePtr
}

// drawWords is the size of a Draw of the kernels: seed (2 words), temperature, position.
const drawWords = 4

// inputs is a step's input as the kernels want it, in host memory.
type inputs struct {
	draws, rules, tokens, positions, slots, seqs, rows, tiles, tables, edits []int32
	words                                                                    int
}

// sizes is how much there is of a step's inputs. Only edits, which lie last, differ among steps of
// a graph.
type sizes struct{ tokens, rows, rules, seqs, tiles, maxTable, edits int }

// place divides memory into a step's inputs and returns their addresses; with no memory it only
// counts.
func place(memory []int32, base cuda.DevicePtr, n sizes) (in inputs, at addresses) {
	for _, f := range []struct {
		to   *[]int32
		addr *cuda.DevicePtr
		n    int
	}{
		{&in.draws, &at.draws, drawWords * n.rows}, // 8-byte aligned: first
		{&in.rules, &at.rules, ruleWords * n.rules},
		{&in.tokens, &at.tokens, n.tokens},
		{&in.positions, &at.positions, n.tokens},
		{&in.slots, &at.slots, n.tokens},
		{&in.seqs, &at.seqs, n.tokens},
		{&in.rows, &at.rows, n.rows},
		{&in.tiles, &at.tiles, 2 * n.tiles},
		{&in.tables, &at.tables, n.seqs * n.maxTable},
		{&in.edits, &at.edits, 2 * n.edits},
	} {
		if memory != nil {
			*f.to = memory[in.words : in.words+f.n : in.words+f.n]
		}
		*f.addr = base + cuda.DevicePtr(4*in.words)
		in.words += f.n
	}
	return in, at
}

// feed brings a step's inputs to the device.
type feed struct {
	*drawer
	graphs *graphs       // which hold addresses of the inputs
	ruled  []rule        // scratch of rules
	edits  []sample.Edit // as well
}

// upload writes a batch's inputs for a step of (at least) its size and queues their way to the
// device. Rows beyond the batch's are empty: position -1.
func (r *feed) upload(b *modelrunner.Batch, rows []wanted, tokens, seqs, maxTable int) (addresses, error) {
	rules, edits := r.rules(b, rows)
	n := sizes{
		tokens: tokens, rows: max(len(rows), tokens), seqs: seqs, tiles: tilesOf(b), maxTable: maxTable,
		edits: len(edits),
	}
	if rules != nil {
		n.rules = n.rows
	}
	counted, _ := place(nil, 0, n)
	bytes := 4 * int64(counted.words)
	if bytes > r.in.device.Size() {
		if err := r.grow(bytes); err != nil {
			return addresses{}, err
		}
	}
	memory := unsafe.Slice((*int32)(unsafe.Pointer(&r.in.host.Bytes()[0])), counted.words)
	in, at := place(memory, r.in.device.Ptr(), n)
	if rules == nil {
		at.rules = 0
	}
	copy(in.tokens, b.Tokens)
	copy(in.positions, b.Positions)
	copy(in.slots, b.Slots)
	for i := len(b.Tokens); i < tokens; i++ {
		in.tokens[i], in.positions[i], in.slots[i] = 0, -1, 0
	}
	for i, s := range b.Seqs {
		for j := range s.Len {
			in.seqs[s.Start+j] = int32(i)
		}
		copy(in.tables[i*maxTable:(i+1)*maxTable], s.Blocks)
	}
	tile := in.tiles
	for _, s := range b.Seqs {
		for at := 0; at < s.Len && len(tile) > 0; at += tileRows {
			tile[0], tile[1] = int32(s.Start+at), int32(min(tileRows, s.Len-at))
			tile = tile[2:]
		}
	}
	clear(in.draws)
	for i, w := range rows {
		in.rows[i] = int32(w.row)
		if w.state != nil && !w.host {
			setDraw(in.draws[i*drawWords:], w.state)
		}
	}
	clear(in.rules)
	copy(in.rules, words(rules))
	copy(in.edits, words(edits))
	return at, r.in.device.CopyFromAsync(0, r.in.host, 0, bytes, r.stream)
}

// tilesOf is how many tiles a batch's sequences have; none when each has one row. Then the layout
// does not depend on the batch, as graphs want it.
func tilesOf(b *modelrunner.Batch) int {
	if len(b.Seqs) == len(b.Tokens) {
		return 0
	}
	n := 0
	for _, s := range b.Seqs {
		n += (s.Len + tileRows - 1) / tileRows
	}
	return n
}

// grow makes the staging memory larger. Graphs hold its address: they go.
func (r *feed) grow(bytes int64) error {
	if err := errors.Join(dropGraphs(r.graphs.byKey), r.stream.Synchronize(), r.in.free()); err != nil {
		return err
	}
	return r.in.make(r.device, int64(1)<<bits.Len64(uint64(bytes)))
}

// words is memory as the device gets it.
func words[T any](of []T) []int32 {
	if len(of) == 0 {
		return nil
	}
	return unsafe.Slice((*int32)(unsafe.Pointer(&of[0])), len(of)*int(unsafe.Sizeof(of[0])/4))
}
