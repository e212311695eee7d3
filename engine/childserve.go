package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"

	"github.com/enginetest/enginetest/engine/internal/wire"
	"github.com/enginetest/enginetest/llm"
)

// coreServer is a core in the process that was started for it, as its parent sees it.
type coreServer struct {
	link    *wire.Conn
	wake    chan struct{} // there is an event to send
	sending sync.Mutex    // held while an event is sent, so that events keep their order

	mu       sync.Mutex
	core     *core
	requests map[uint64]*request
	calls    map[uint64]context.CancelFunc
	next     event
	stopping bool // the parent has ordered the shutdown, or does not wait any more for what it loads
}

// serve runs a core until its parent closes the link, or is gone. It does not return.
func serve(link *wire.Conn) {
	s := &coreServer{
		link: link, wake: make(chan struct{}, 1), requests: map[uint64]*request{},
		calls: map[uint64]context.CancelFunc{},
	}
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)
	go s.onTerminate(terminate)
	go func() {
		for range s.wake {
			s.flush()
		}
	}()
	for {
		var o command
		if err := link.Recv(&o); err != nil {
			os.Exit(0) // the link is the life of this process
		}
		s.take(o)
	}
}

const sigtermDump = "engine core: SIGTERM, and it was told to stop"

// onTerminate ends a core that was told to stop and does not. Before that its life is the parent's
// business: whoever signals a whole control group means the parent to drain.
func (s *coreServer) onTerminate(terminate <-chan os.Signal) {
	for range terminate {
		s.mu.Lock()
		stopping := s.stopping
		s.mu.Unlock()
		if !stopping {
			slog.Info("engine core: SIGTERM ignored: the parent process ends this one")
			continue
		}
		buf := make([]byte, 1<<20)
		fmt.Fprintf(os.Stderr, "%s; goroutines:\n%s\n", sigtermDump, buf[:runtime.Stack(buf, true)])
		os.Exit(128 + int(syscall.SIGTERM))
	}
}

// take does what is ordered.
func (s *coreServer) take(o command) {
	if o.Cancel {
		s.mu.Lock()
		cancel := s.calls[o.ID]
		s.mu.Unlock()
		if cancel != nil {
			cancel()
		}
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	if o.Within > 0 {
		ctx, cancel = context.WithTimeout(context.Background(), o.Within)
	}
	s.mu.Lock()
	s.calls[o.ID] = cancel
	s.mu.Unlock()
	if o.Method == "start" || o.Method == "abort" {
		s.do(ctx, o)
	} else {
		go s.do(ctx, o)
	}
}

func (s *coreServer) do(ctx context.Context, o command) {
	body, err := methods[o.Method](ctx, s, o.Body)
	s.mu.Lock()
	s.calls[o.ID]()
	delete(s.calls, o.ID)
	s.mu.Unlock()
	if o.ID != 0 {
		s.tell(func(n *event) { n.Replies = append(n.Replies, reply{o.ID, body, pack(err)}) })
	}
}

// tell adds to the next event.
func (s *coreServer) tell(add func(*event)) {
	s.mu.Lock()
	add(&s.next)
	s.mu.Unlock()
	s.notify()
}

func (s *coreServer) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// flush sends the next event.
func (s *coreServer) flush() {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.mu.Lock()
	n := s.next
	s.next = event{}
	if s.core != nil {
		if n.Stats = s.core.counters(); n.Stats.State == Failed {
			n.Failed = pack(s.core.failure())
		}
	}
	s.mu.Unlock()
	err := s.link.Send(&n)
	if _, ok := errors.AsType[*wire.TooBigError](err); ok {
		err = s.sendApart(n)
	}
	if err != nil {
		os.Exit(0) // no one is there
	}
}

// sendApart sends each item in a message of its own, and an error in place of one that is too big
// even so.
func (s *coreServer) sendApart(all event) error {
	head := event{Stats: all.Stats, Faults: all.Faults, Failed: all.Failed, Done: all.Done, Closing: all.Closing}
	if err := s.link.Send(&head); err != nil {
		return err
	}
	for _, u := range all.Updates {
		one := event{Stats: all.Stats, Updates: []update{u}}
		err := s.link.Send(&one)
		if tooBig, ok := errors.AsType[*wire.TooBigError](err); ok {
			one.Updates[0] = update{
				Handle: u.Handle, Over: true,
				Err: pack(fmt.Errorf("engine: the output does not fit: %w", tooBig)),
			}
			err = s.link.Send(&one)
		}
		if err != nil {
			return err
		}
	}
	for _, r := range all.Replies {
		if err := s.link.Send(&event{Stats: all.Stats, Replies: []reply{r}}); err != nil {
			return err
		}
	}
	return nil
}

// engine is the core; only open is called before there is one.
func (s *coreServer) engine() *core {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core
}

func (s *coreServer) open(ctx context.Context, cfg Config) (opened, error) {
	defer context.AfterFunc(ctx, func() {
		s.mu.Lock()
		s.stopping = true
		s.mu.Unlock()
	})()
	e, err := open(ctx, cfg, func(c *core) (model, error) {
		// Not flush: a message wakes the parent on this processor, and the step would wait. The
		// sender has its turn as callers in process have.
		c.loop.published = s.notify
		c.faults.announce = func(reports []llm.FaultReport) {
			s.tell(func(n *event) { n.Faults = reports })
			s.flush() // now: the fault may be the end of this process
		}
		return loadCheckpoint(c)
	})
	if err != nil {
		return opened{}, err
	}
	c := e.b.(*core)
	e.dropped.Stop() // the parent watches its own handle
	s.mu.Lock()
	s.core = c
	s.mu.Unlock()
	go func() {
		<-c.done
		if c.failure() != nil {
			s.tell(func(n *event) { n.Done = true })
		}
	}()
	cfg = c.config()
	cfg.Logger = nil
	return opened{cfg, c.eosTokenIDs(), c.poolingInfo(), c.counters(), c.unused}, nil
}

func (s *coreServer) start(ctx context.Context, o startCommand) ([]string, error) {
	last := o.First + uint64(len(o.Requests)+len(o.Pooling))
	each := func(i int, r *request) {
		handle := o.First + uint64(i)
		r.sink = func(r *request) { s.update(handle, r) }
		s.mu.Lock()
		s.requests[handle] = r
		s.mu.Unlock()
	}
	var rs []*request
	var err error
	if o.Pooling != nil {
		rs, err = s.engine().poolFor(ctx, o.Pooling, each)
	} else {
		rs, err = s.engine().startFor(ctx, o.Requests, o.Stream, each)
	}
	if err != nil {
		s.mu.Lock()
		for h := o.First; h < last; h++ {
			delete(s.requests, h)
		}
		s.mu.Unlock()
		return nil, err
	}
	ids := make([]string, len(rs))
	for i, r := range rs {
		ids[i] = r.id
	}
	return ids, nil
}

// update is called by the loop when a request has something for its caller; published comes after
// all of them.
func (s *coreServer) update(handle uint64, r *request) {
	u := update{Handle: handle, Deltas: r.take()}
	select {
	case <-r.done:
		u.Over, u.Err = true, pack(r.err)
		if !r.stream {
			u.Out, u.Data = &r.out, r.data
		}
	default:
		if len(u.Deltas) == 0 {
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next.Updates = append(s.next.Updates, u)
	if u.Over {
		delete(s.requests, handle)
	}
}

func (s *coreServer) abort(_ context.Context, handles []uint64) (none, error) {
	s.mu.Lock()
	var rs []*request
	for _, h := range handles {
		if r := s.requests[h]; r != nil {
			rs = append(rs, r)
		}
	}
	s.mu.Unlock()
	s.engine().abort(rs...)
	return none{}, nil
}

func (s *coreServer) shutdown(ctx context.Context, _ none) (closed, error) {
	s.mu.Lock()
	s.stopping = true
	c := s.core
	s.next.Closing = true
	s.mu.Unlock()
	s.flush()
	err := c.shutdown(ctx)
	return closed{c.shutdownReport(), c.faultReports(), c.counters(), pack(c.failure()), pack(err)}, nil
}
