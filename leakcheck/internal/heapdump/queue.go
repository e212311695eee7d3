package heapdump

// queue is first in, first out. It keeps only the part that is waiting, in blocks that it uses
// again.
type queue struct {
	blocks     [][]uint32
	spare      [][]uint32
	head, tail int // in the first and the last block
}

const queueBlock = 16 << 10

//go:norace
func (q *queue) add(v uint32) {
	if len(q.blocks) == 0 || q.tail == queueBlock {
		var b []uint32
		if n := len(q.spare); n > 0 {
			b, q.spare = q.spare[n-1], q.spare[:n-1]
		} else {
			b = make([]uint32, queueBlock)
		}
		q.blocks, q.tail = append(q.blocks, b), 0
	}
	q.blocks[len(q.blocks)-1][q.tail] = v
	q.tail++
}

//go:norace
func (q *queue) next() (v uint32, ok bool) {
	if len(q.blocks) == 0 || len(q.blocks) == 1 && q.head == q.tail {
		return 0, false
	}
	v = q.blocks[0][q.head]
	if q.head++; q.head == queueBlock {
		q.spare, q.blocks, q.head = append(q.spare, q.blocks[0]), q.blocks[1:], 0
	}
	return v, true
}

// clear forgets what is waiting.
func (q *queue) clear() { q.spare, q.blocks, q.head, q.tail = append(q.spare, q.blocks...), nil, 0, 0 }
