package scheduler

import "container/heap"

// queue is a list of sequences. A sequence is in at most one queue and leaves it in constant time.
type queue struct {
	first, last *Seq
	n           int
}

func (l *queue) pushBack(q *Seq)  { l.insert(q, l.last, nil) }
func (l *queue) pushFront(q *Seq) { l.insert(q, nil, l.first) }

func (l *queue) insert(q, prev, next *Seq) {
	q.in, q.prev, q.next = l, prev, next
	if prev != nil {
		prev.next = q
	} else {
		l.first = q
	}
	if next != nil {
		next.prev = q
	} else {
		l.last = q
	}
	l.n++
}

func (l *queue) remove(q *Seq) {
	if q.prev != nil {
		q.prev.next = q.next
	} else {
		l.first = q.next
	}
	if q.next != nil {
		q.next.prev = q.prev
	} else {
		l.last = q.prev
	}
	q.in, q.prev, q.next = nil, nil, nil
	l.n--
}

// client is one of those that share the scheduler.
type client struct {
	key     any
	waiting queue   // ready to be admitted, in order of arrival
	seqs    int     // all that have not finished
	running int     // those that run
	time    float64 // its virtual time: admissions so far, counted from the time at which it joined
	place   int     // in the heap of clients that wait; -1 when it has nothing to admit
}

// clients orders the clients that wait: the one with the fewest running sequences is next, of equal
// ones the one that was admitted least, and of equal ones the one that has waited longest.
type clients struct {
	byKey map[any]*client
	heap  []*client
	time  float64 // virtual time of the latest admission: newcomers start here
}

// join returns the client of a new sequence.
func (cs *clients) join(key any) *client {
	c := cs.byKey[key]
	if c == nil {
		if cs.byKey == nil {
			cs.byKey = map[any]*client{}
		}
		c = &client{key: key, time: cs.time, place: -1}
		cs.byKey[key] = c
	}
	c.seqs++
	return c
}

// leave forgets a client with its last sequence.
func (cs *clients) leave(c *client) {
	if c.seqs--; c.seqs == 0 {
		delete(cs.byKey, c.key)
	}
}

// next returns the client whose first sequence is to be admitted; nil when none waits.
func (cs *clients) next() *client {
	if len(cs.heap) == 0 {
		return nil
	}
	return cs.heap[0]
}

// changed restores the order after a client's queue or numbers changed.
func (cs *clients) changed(c *client) {
	switch {
	case c.waiting.n == 0 && c.place >= 0:
		heap.Remove(cs, c.place)
	case c.waiting.n > 0 && c.place < 0:
		heap.Push(cs, c)
	case c.place >= 0:
		heap.Fix(cs, c.place)
	}
}

// admitted notes that a client has a running sequence more.
func (cs *clients) admitted(c *client) {
	cs.time = max(cs.time, c.time)
	c.time++
	c.running++
	cs.changed(c)
}

// preempted takes an admission back.
func (cs *clients) preempted(c *client) {
	c.time--
	c.running--
	cs.changed(c)
}

func (cs *clients) Len() int { return len(cs.heap) }

func (cs *clients) Less(i, j int) bool {
	a, b := cs.heap[i], cs.heap[j]
	switch {
	case a.running != b.running:
		return a.running < b.running
	case a.time != b.time:
		return a.time < b.time
	}
	return a.waiting.first.ticket < b.waiting.first.ticket
}

func (cs *clients) Swap(i, j int) {
	h := cs.heap
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push is for container/heap.
func (cs *clients) Push(x any) {
	c := x.(*client)
	c.place = len(cs.heap)
	cs.heap = append(cs.heap, c)
}

// Pop is for container/heap.
func (cs *clients) Pop() any {
	last := len(cs.heap) - 1
	c := cs.heap[last]
	cs.heap[last], cs.heap = nil, cs.heap[:last]
	c.place = -1
	return c
}
