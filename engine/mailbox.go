package engine

import "sync"

// mailbox holds what callers want the loop to do. Its methods are safe for concurrent use.
type mailbox struct {
	wake chan struct{} // something was posted, or a transfer has ended

	mu     sync.Mutex
	posted []func()
}

func newMailbox() *mailbox { return &mailbox{wake: make(chan struct{}, 1)} }

func (m *mailbox) post(f func()) {
	m.mu.Lock()
	m.posted = append(m.posted, f)
	m.mu.Unlock()
	m.notify()
}

// notify wakes the loop when it waits for work.
func (m *mailbox) notify() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// take empties the mailbox.
func (m *mailbox) take() []func() {
	m.mu.Lock()
	defer m.mu.Unlock()
	posted := m.posted
	m.posted = nil
	return posted
}
