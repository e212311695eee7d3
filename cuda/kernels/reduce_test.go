package kernels_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/enginetest/enginetest/cuda"
)

// One rank at a time: what the others would have sent lies in its mailbox already, and what it
// sends goes to mailboxes that no one reads. How ranks meet in earnest is tested in
// engine/internal/cudarunner.
var reduceTests = []kernelTest{
	{[]string{"reduce_words", "reduce_blocks"}, testReduce, []wrong{
		set("one part fewer", 17, 1), set("no bias", 19, nil), set("another rank", 9, 0), swap("the others' mailboxes",
			1, 3), set("fewer floats", 21, 9),
	}},
	{[]string{"meet"}, testMeet, []wrong{set("another rank", 9, 0), set("fewer ranks", 10, 2)}},
	{[]string{"reduce_parts"}, testReduceParts, []wrong{set("a part too few", 2, 2), set("fewer floats", 4, 9)}},
	{[]string{"reduce_into"}, testReduceInto, []wrong{
		set("no bias", 4, nil), set("rows of another width", 5, 40),
		set("fewer floats", 6, 9),
	}},
}

// mailbox is the layout of reduce.cu.
type mailbox struct{ rank, size, capacity, fast int }

// stopped is where a kernel that gave up tells the later ones.
const stopped = 12

func (m mailbox) flag(from, block int) int { return 256 + 8*(from*(m.capacity/4096+2)+block) }
func (m mailbox) messages() int            { return (m.flag(m.size, 0) + 255) / 256 * 256 }
func (m mailbox) slot(epoch, from int) int {
	if from > m.rank { // no one writes to itself
		from--
	}
	return epoch%2*(m.size-1) + from
}
func (m mailbox) words(epoch, from int) int { return m.messages() + m.slot(epoch, from)*m.fast*8 }
func (m mailbox) floats(epoch, from int) int {
	return m.messages() + 2*(m.size-1)*m.fast*8 + m.slot(epoch, from)*m.capacity*4
}
func (m mailbox) bytes() int { return m.messages() + 2*(m.size-1)*(8*m.fast+4*m.capacity) }

// empty is a mailbox after this many kernels, with poison where messages go.
func (m mailbox) empty(epochs int) []byte {
	b := poisoned(m.bytes())
	clear(b[:m.messages()])
	binary.LittleEndian.PutUint64(b, uint64(epochs))
	return b
}

// put writes a message, with flag or words of this epoch.
func (m mailbox) put(b []byte, inWords bool, epoch, from int, v []float32) {
	for i, f := range v {
		if inWords {
			at := b[m.words(epoch, from)+8*i:]
			binary.LittleEndian.PutUint32(at, math.Float32bits(f))
			binary.LittleEndian.PutUint32(at[4:], uint32(epoch))
		} else {
			binary.LittleEndian.PutUint32(b[m.floats(epoch, from)+4*i:], math.Float32bits(f))
			binary.LittleEndian.PutUint64(b[m.flag(from, 1+i/4096):], uint64(epoch))
		}
	}
}

func float32s(r *run, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return v
}

func bytesOf(v []float32) []byte {
	b := make([]byte, 4*len(v))
	for i, f := range v {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(f))
	}
	return b
}

// comm are the arguments that say who waits for whom.
func (r *run) comm(m mailbox, boxes []*buffer, state *buffer, patience time.Duration) []any {
	args := []any{boxes[m.rank]}
	for i := range 8 {
		if i < m.size {
			args = append(args, boxes[i])
		} else {
			args = append(args, nil)
		}
	}
	return append(args, m.rank, m.size, m.capacity, m.fast, state, patience.Nanoseconds())
}

// testReduce: bit for bit, in the order of the ranks.
func testReduce(k *kernel) {
	for _, c := range []struct {
		rank, size, ld, rows, parts, epochs int
		bias                                bool
		missing                             int // a rank whose message does not come; 0: none
	}{
		{rank: 1, size: 3, ld: 64, rows: 3, parts: 2, epochs: 6, bias: true},
		{rank: 0, size: 2, ld: 2048, rows: 1, parts: 1},
		{rank: 1, size: 2, ld: 96, rows: 50, parts: 5, epochs: 1<<32 - 1}, // the lower half of the epoch is 0
		{rank: 7, size: 8, ld: 32, rows: 64, parts: 1, epochs: 3, bias: true},
		{rank: 0, size: 3, ld: 4096, rows: 4, parts: 16, epochs: 1, bias: true},
		{rank: 0, size: 3, ld: 64, rows: 2, parts: 1, epochs: 9, missing: 2},
	} {
		k.run(fmt.Sprintf("%+v", c), func(r *run) {
			inWords, n := k.name == "reduce_words", c.ld*c.rows
			m := mailbox{c.rank, c.size, (n + 4095) / 4096 * 4096, n}
			epoch := c.epochs + 1
			x, bias, partial := float32s(r, n), float32s(r, c.ld), make([][]float32, c.parts)
			own := make([]float32, n)
			for p := range partial {
				partial[p] = float32s(r, n)
				for i := range own {
					own[i] += partial[p][i]
				}
			}
			start := m.empty(c.epochs)
			var total []float32
			for from := range c.size {
				v := own
				if from != c.rank {
					if v = float32s(r, n); from == 0 || from != c.missing {
						m.put(start, inWords, epoch, from, v)
					}
				}
				if from == 0 {
					total = slices.Clone(v)
					continue
				}
				for i := range total {
					total[i] += v[i]
				}
			}
			boxes, want := make([]*buffer, c.size), make([][]byte, c.size)
			for i := range boxes {
				other := mailbox{i, c.size, m.capacity, m.fast}
				b := other.empty(7)
				want[i] = slices.Clone(b)
				if other.put(want[i], inWords, epoch, c.rank, own); i == c.rank {
					b, want[i] = start, slices.Clone(start)
					binary.LittleEndian.PutUint64(want[i], uint64(epoch))
				}
				boxes[i] = r.in(fmt.Sprintf("mailbox %d", i), b)
			}
			var parts []byte
			for _, p := range partial {
				parts = append(parts, bytesOf(p)...)
			}
			args := r.comm(m, boxes, r.in("state", words(0)), 20*time.Millisecond)
			state := r.buffers[len(r.buffers)-1]
			out := r.in("x", bytesOf(x))
			args = append(args, out, r.in("parts", parts), c.parts, int64(n), nil, c.ld, n/4)
			for i := range x {
				if c.bias {
					total[i] += bias[i%c.ld]
				}
				x[i] += total[i]
			}
			if b := r.in("bias", bytesOf(bias)); c.bias {
				args[19] = b
			}
			grid, threads := (n/4+127)/128, 128
			if !inWords {
				grid, threads = (n+4095)/4096, 256
			}
			r.launch(k.name, cuda.Dim{X: grid}, threads, 0, args...)
			if c.missing > 0 {
				want[c.rank][stopped] = 1
			}
			for i, b := range boxes {
				r.same(b, want[i])
			}
			if c.missing > 0 {
				out.scratch()
				r.same(state, words(2+c.missing))
				return
			}
			r.same(state, words(0))
			r.same(out, bytesOf(x))
		})
	}
}

// testMeet: every other rank gets a flag; those of later epochs count as well.
func testMeet(k *kernel) {
	for _, c := range []struct{ rank, size, epochs, missing int }{
		{1, 3, 5, 0},
		{0, 2, 1 << 40, 0},
		{7, 8, 0, 0},
		{0, 3, 4, 1},
	} {
		k.run(fmt.Sprintf("%+v", c), func(r *run) {
			epoch := c.epochs + 1
			boxes, want := make([]*buffer, c.size), make([][]byte, c.size)
			for i := range boxes {
				m := mailbox{i, c.size, 4096, 32}
				b := m.empty(3)
				want[i] = slices.Clone(b)
				binary.LittleEndian.PutUint64(want[i][m.flag(c.rank, 0):], uint64(epoch))
				if i == c.rank {
					b = m.empty(c.epochs)
					for from := range c.size {
						switch {
						case from == c.rank:
						case from > 0 && from == c.missing:
							binary.LittleEndian.PutUint64(b[m.flag(from, 0):], uint64(epoch-1))
						default:
							binary.LittleEndian.PutUint64(b[m.flag(from, 0):], uint64(epoch+from%2))
						}
					}
					want[i] = slices.Clone(b)
					binary.LittleEndian.PutUint64(want[i], uint64(epoch))
				}
				boxes[i] = r.in(fmt.Sprintf("mailbox %d", i), b)
			}
			state, answer := r.in("state", words(0)), 0
			if c.missing > 0 {
				want[c.rank][stopped] = 1
			}
			r.launch(k.name, cuda.Dim{X: 1}, 32, 0, r.comm(mailbox{c.rank, c.size, 4096, 32}, boxes, state,
				20*time.Millisecond)...)
			for i, b := range boxes {
				r.same(b, want[i])
			}
			if c.missing > 0 {
				answer = 2 + c.missing
			}
			r.same(state, words(answer))
		})
	}
}

// testReduceParts: also into the first part.
func testReduceParts(k *kernel) {
	for _, c := range []struct{ n, parts int }{{2052, 3}, {4, 2}, {4096, 16}} {
		k.run(fmt.Sprintf("%+v", c), func(r *run) {
			all := float32s(r, c.n*c.parts)
			want := slices.Clone(all)
			for p := 1; p < c.parts; p++ {
				for i := range c.n {
					want[i] += all[p*c.n+i]
				}
			}
			parts := r.in("parts", bytesOf(all))
			r.launch(k.name, cuda.Dim{X: (c.n/4 + 255) / 256}, 256, 0, parts, parts, c.parts, int64(c.n), c.n/4)
			r.same(parts, bytesOf(want))
		})
	}
}

func testReduceInto(k *kernel) {
	for _, c := range []struct {
		ld, rows, parts int
		bias            bool
	}{{64, 3, 1, true}, {2048, 1, 1, false}, {96, 33, 4, true}} {
		k.run(fmt.Sprintf("%+v", c), func(r *run) {
			n := c.ld * c.rows
			x, parts, bias := float32s(r, n), float32s(r, n*c.parts), float32s(r, c.ld)
			want := slices.Clone(x)
			for i := range want {
				v := parts[i]
				for p := 1; p < c.parts; p++ {
					v += parts[p*n+i]
				}
				if c.bias {
					v += bias[i%c.ld]
				}
				want[i] += v
			}
			args := []any{r.in("x", bytesOf(x)), r.in("parts", bytesOf(parts)), c.parts, int64(n), nil, c.ld, n / 4}
			if b := r.in("bias", bytesOf(bias)); c.bias {
				args[4] = b
			}
			r.launch(k.name, cuda.Dim{X: (n/4 + 255) / 256}, 256, 0, args...)
			r.same(args[0].(*buffer), bytesOf(want))
		})
	}
}
