package gpuwait

import (
	"os"
	"slices"
	"sync"
)

// queue orders the Acquires of one process: a lock on a file does not exclude a second taker that
// shares the file, and polling has no order. It has no channel to wait on, because one made inside
// a bubble of testing/synctest must not be used outside it.
type queue struct {
	mu      sync.Mutex
	waiting []*place
	held    map[string]holding // by lock path
}

type holding struct {
	file *os.File // nil for an inherited one. Being here keeps it from being collected, and so the lock.
	name string   // the test's
}

// place is the position of one Acquire in the queue.
type place struct{ keys []string }

var inProcess = queue{held: map[string]holding{}}

func (q *queue) join(keys []string) *place {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := &place{keys}
	q.waiting = append(q.waiting, p)
	return p
}

func (q *queue) leave(p *place) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = slices.DeleteFunc(q.waiting, func(o *place) bool { return o == p })
}

// turn reports whether no earlier Acquire wants any of the same devices. The caller holds mu.
func (q *queue) turn(p *place) bool {
	for _, o := range q.waiting {
		if o == p {
			return true
		}
		if slices.ContainsFunc(o.keys, func(k string) bool { return slices.Contains(p.keys, k) }) {
			return false
		}
	}
	return true
}

// take enters a lease. The caller holds mu.
func (q *queue) take(l *Lease, name string) {
	for _, k := range l.keys {
		q.held[k] = holding{name: name}
	}
	for _, f := range l.files {
		q.held[trimLock(f.Name())] = holding{f, name}
	}
}

// holder is the name under which this process holds a lease, its own or an inherited one.
func (q *queue) holder(key string) (name string, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	h, ok := q.held[key]
	return h.name, ok
}

func (q *queue) release(keys []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, k := range keys {
		if f := q.held[k].file; f != nil {
			_ = f.Close()
		}
		delete(q.held, k)
	}
}
