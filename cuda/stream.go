package cuda

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Stream is a queue of device work.
type Stream struct {
	resource
	handle uintptr
}

// NewStream makes a stream that does not wait for the default stream (CU_STREAM_NON_BLOCKING).
func (w *Worker) NewStream(owner string) (*Stream, error) {
	if err := w.enter("NewStream"); err != nil {
		return nil, err
	}
	const nonBlocking = 1
	if err := w.call(&w.d.fn.streamCreate, w.result(0), nonBlocking, 0); err != nil {
		return nil, err
	}
	s := &Stream{handle: uintptr(w.out[0])}
	w.add(&s.resource, kindStream, owner, 0, s.handle, func() error { return w.call(&w.d.fn.streamDestroy, s.handle) })
	return s, nil
}

// Handle is the CUstream, for libraries that want one.
func (s *Stream) Handle() uintptr {
	if s == nil {
		return 0
	}
	return s.handle
}

// stream checks s and returns its handle; nil is the default stream.
func (w *Worker) stream(call string, s *Stream) (uintptr, error) {
	if s == nil {
		return 0, nil
	}
	if err := w.use(call, &s.resource); err != nil {
		return 0, err
	}
	return s.handle, nil
}

// Synchronize waits until the stream's work is done. Errors of kernels show here.
func (s *Stream) Synchronize() error {
	if err := s.enter("Stream.Synchronize"); err != nil {
		return err
	}
	return s.w.call(&s.w.d.fn.streamSync, s.handle)
}

// Done reports whether the stream's work is done.
func (s *Stream) Done() (bool, error) {
	if err := s.enter("Stream.Done"); err != nil {
		return false, err
	}
	return ready(s.w.call(&s.w.d.fn.streamQuery, s.handle))
}

// ready turns the answer of a query into a bool.
func ready(err error) (bool, error) {
	if errors.Is(err, errNotReady) {
		return false, nil
	}
	return err == nil, err
}

// Wait makes the stream's later work wait for the event.
func (s *Stream) Wait(e *Event) error {
	if err := s.enter("Stream.Wait"); err != nil {
		return err
	}
	if e == nil {
		return &misuseError{"Stream.Wait", errArguments, "nil event"}
	}
	if err := s.w.use("Stream.Wait", &e.resource); err != nil {
		return err
	}
	return s.w.call(&s.w.d.fn.streamWait, s.handle, e.handle, 0)
}

// Close destroys the stream; work that is queued is still done.
func (s *Stream) Close() error {
	if s == nil {
		return &misuseError{"Stream.Close", errArguments, "nil stream"}
	}
	return s.free("Stream.Close")
}

// Event marks a point in a stream.
type Event struct {
	resource
	handle uintptr
}

// NewEvent makes an event that keeps the time.
func (w *Worker) NewEvent(owner string) (*Event, error) { return w.newEvent(owner, 0) }

// NewFence makes an event without a time: cheaper, for ordering only.
func (w *Worker) NewFence(owner string) (*Event, error) { return w.newEvent(owner, 2) } // CU_EVENT_DISABLE_TIMING

func (w *Worker) newEvent(owner string, flags uintptr) (*Event, error) {
	if err := w.enter("NewEvent"); err != nil {
		return nil, err
	}
	if err := w.call(&w.d.fn.eventCreate, w.result(0), flags); err != nil {
		return nil, err
	}
	e := &Event{handle: uintptr(w.out[0])}
	w.add(&e.resource, kindEvent, owner, 0, e.handle, func() error { return w.call(&w.d.fn.eventDestroy, e.handle) })
	return e, nil
}

// Record puts the event behind the work that the stream has now.
func (e *Event) Record(s *Stream) error {
	if err := e.enter("Event.Record"); err != nil {
		return err
	}
	stream, err := e.w.stream("Event.Record", s)
	if err != nil {
		return err
	}
	return e.w.call(&e.w.d.fn.eventRecord, e.handle, stream)
}

// Synchronize waits until the device has reached the event.
func (e *Event) Synchronize() error {
	if err := e.enter("Event.Synchronize"); err != nil {
		return err
	}
	return e.w.call(&e.w.d.fn.eventSync, e.handle)
}

// Done reports whether the device has reached the event.
func (e *Event) Done() (bool, error) {
	if err := e.enter("Event.Done"); err != nil {
		return false, err
	}
	return ready(e.w.call(&e.w.d.fn.eventQuery, e.handle))
}

// Since is the device's time between start and e (resolution about 0.5 µs). Both have been reached.
func (e *Event) Since(start *Event) (time.Duration, error) {
	if err := e.enter("Event.Since"); err != nil {
		return 0, err
	}
	if start == nil {
		return 0, &misuseError{"Event.Since", errArguments, "nil event"}
	}
	if err := e.w.use("Event.Since", &start.resource); err != nil {
		return 0, err
	}
	if err := e.w.call(&e.w.d.fn.eventElapsed, e.w.result(0), start.handle, e.handle); err != nil {
		return 0, fmt.Errorf("%s: %w", &e.resource, err)
	}
	ms := math.Float32frombits(uint32(e.w.out[0]))
	return time.Duration(float64(ms) * float64(time.Millisecond)), nil
}

// Close destroys the event.
func (e *Event) Close() error {
	if e == nil {
		return &misuseError{"Event.Close", errArguments, "nil event"}
	}
	return e.free("Event.Close")
}
