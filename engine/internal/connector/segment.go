package connector

import (
	"context"
	"sync/atomic"

	"github.com/enginetest/enginetest/ledger"
)

// Segment is an open file of KV blocks: an offload.Connector.
type Segment struct {
	geometry
	file   *file
	memory []byte // nil once closed
	id     int    // of who has it open, in [1, maxUsers]
	joined uint64 // by the clock
	since  atomic.Uint64
	// for copies of blocks, which are checked before they are used
	buffers chan []byte

	ledger *ledger.Ledger
	entry  ledger.ID
}

// Open opens a segment, and makes it when it does not exist. ctx bounds the wait for another process
// that is just opening or closing it.
//
// Errors: a [*MismatchError], the system's, the context's, or what Options.Before said.
func Open(ctx context.Context, o Options) (*Segment, error) {
	f, err := openFile(ctx, &o)
	if err != nil {
		return nil, err
	}
	s := &Segment{
		geometry: f.geometry, file: f, memory: f.memory, id: f.id, ledger: o.Ledger, buffers: make(chan []byte, 4),
	}
	s.joined = s.tick()
	s.sweep()
	s.entry = s.ledger.Add(ledger.Holding{
		Owner: Owner, Kind: "shared", Device: "host", Bytes: f.size(), Addr: f.address(),
	})
	return s, nil
}

// Close unmaps the segment and closes the file; the last one to do so removes it. No transfer is
// under way.
func (s *Segment) Close() error {
	if s.memory == nil {
		return ErrClosed
	}
	if err := s.file.close(); err != nil {
		return err
	}
	s.memory = nil
	return s.ledger.Remove(s.entry)
}

// alive reports whether a user has the segment open.
func (s *Segment) alive(id int) bool { return s.file.alive(id) }
