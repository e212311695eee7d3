package cuda

import "errors"

// ErrPeerEnabled is the driver's answer to enabling access a second time; EnablePeer does not
// return it.
const errPeerEnabled Code = 704

// EnablePeer lets kernels and copies of w use the memory of peer's device directly, until either is
// closed.
func (w *Worker) EnablePeer(peer *Worker) error {
	if err := w.enter("EnablePeer"); err != nil {
		return err
	}
	if peer == nil || peer.closed.Load() || peer.dev.Ordinal == w.dev.Ordinal {
		return &misuseError{"EnablePeer", errArguments, "the peer is an open worker on another device"}
	}
	err := w.call(&w.d.fn.ctxEnablePeer, peer.context.Load(), 0)
	if errors.Is(err, errPeerEnabled) {
		return nil
	}
	return err
}

// CopyPeer queues a copy of n bytes of src, which is on another worker's device, on m's worker. The
// caller sees to it that src is live and written: neither is another thread's to check.
func (m *Memory) CopyPeer(off int64, src *Memory, srcOff, n int64, s *Stream) error {
	const call = "Memory.CopyPeer"
	if err := m.enter(call); err != nil {
		return err
	}
	if src == nil || src.w == nil {
		return &misuseError{call, errArguments, "nil source"}
	}
	if src.freed.Load() {
		return &misuseError{call, ErrUseAfterFree, src.String()}
	}
	to, err := m.span(call, off, n)
	if err != nil {
		return err
	}
	from, err := src.span(call, srcOff, n)
	if err != nil {
		return err
	}
	stream, err := m.w.stream(call, s)
	if err != nil || n == 0 {
		return err
	}
	return m.w.call(&m.w.d.fn.copyPeerAsync, to, m.w.context.Load(), from, src.w.context.Load(), uintptr(n), stream)
}
