package kvcache

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func ids(n, first int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(first + i)
	}
	return out
}

// run takes a sequence through admission and computation of all its tokens, and returns its prefix
// hit.
func run(t require.TestingT, c *Cache, tab *Table, tokens []int32) int {
	hit, ok := c.Admit(tab, tokens, len(tokens), true)
	require.True(t, ok)
	c.Commit(tab, tokens, len(tokens))
	return hit
}

func TestPrefixHits(t *testing.T) {
	for _, tc := range []struct {
		name   string
		first  []int32
		second []int32
		hit    int
	}{
		{"same prompt, a full block at the end: capped so that the last token is computed", ids(8, 0), ids(8, 0), 4},
		{"same prompt, one token more than full blocks", ids(9, 0), ids(9, 0), 8},
		{"longer second prompt", ids(8, 0), ids(20, 0), 8},
		{"only full blocks count", ids(7, 0), ids(20, 0), 4},
		{"different first token: the chain breaks at once", ids(8, 0), append([]int32{99}, ids(8, 1)[:7]...), 0},
		{"equal second block after a different first one", ids(8, 0), append(ids(4, 50), ids(9, 4)[:5]...), 0},
		{"shorter than a block", ids(3, 0), ids(3, 0), 0},
		{"one token", ids(1, 0), ids(1, 0), 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := New(16, 4, true)
			var a, b Table
			assert.Zero(t, run(t, c, &a, tc.first))
			c.Free(&a)
			assert.Equal(t, tc.hit, run(t, c, &b, tc.second))
			off := New(16, 4, false)
			run(t, off, &Table{}, tc.first)
			assert.Zero(t, run(t, off, &Table{}, tc.second), "the prefix cache is off")
		})
	}
}

func TestPrefixIsSharedWhileInUse(t *testing.T) {
	c := New(8, 4, true)
	var a, b Table
	run(t, c, &a, ids(9, 0))
	run(t, c, &b, ids(9, 0))
	assert.Equal(t, a.Blocks()[:2], b.Blocks()[:2])
	assert.NotEqual(t, a.Blocks()[2], b.Blocks()[2], "a block that is not full belongs to one sequence")
	assert.Equal(t, 4, c.Stats().Used)
	c.Free(&a)
	assert.Equal(t, 3, c.Stats().Used)
	c.Free(&b)
	assert.Equal(t, Stats{Blocks: 8, Used: 0, Cached: 2, Queries: 18, Hits: 8}, c.Stats())
}

// Equal blocks that were computed side by side both stay, and the prefix is found until the last of
// them is gone.
func TestEqualBlocksAreNotMerged(t *testing.T) {
	c := New(4, 4, true)
	var a, b Table
	_, ok := c.Admit(&a, ids(5, 0), 5, true)
	require.True(t, ok)
	_, ok = c.Admit(&b, ids(5, 0), 5, true)
	require.True(t, ok)
	c.Commit(&a, ids(5, 0), 5)
	c.Commit(&b, ids(5, 0), 5)
	assert.NotEqual(t, a.Blocks()[0], b.Blocks()[0])
	assert.Equal(t, 2, c.Stats().Cached)
	c.Free(&a)
	c.Free(&b)
	var other, again Table
	run(t, c, &other, ids(9, 70)) // needs three of the four blocks: one of the equal ones goes
	assert.Equal(t, 1+2, c.Stats().Cached)
	c.Free(&other)
	assert.Equal(t, 4, run(t, c, &again, ids(5, 0)))
}

func TestReuseOrder(t *testing.T) {
	c := New(5, 2, true)
	var a, b Table
	run(t, c, &a, ids(4, 0))  // two cached blocks
	run(t, c, &b, ids(5, 10)) // two cached blocks and one that is not full
	open := b.Blocks()[2]
	c.Free(&a)
	c.Free(&b)
	var x Table
	require.True(t, c.Grow(&x, 2))
	assert.Equal(t, []int32{open}, x.Blocks(), "a block without a prefix is reused first")
	require.True(t, c.Grow(&x, 4))
	assert.Equal(t, 2, run(t, c, &Table{}, ids(4, 0)),
		"of the least recently freed sequence the last block went, not the first")
}

func TestTooFewBlocksChangesNothing(t *testing.T) {
	c := New(4, 4, true)
	var a, b Table
	run(t, c, &a, ids(8, 0))
	before := c.Stats()
	_, ok := c.Admit(&b, ids(20, 0), 20, true)
	assert.False(t, ok)
	assert.Empty(t, b.Blocks())
	assert.False(t, c.Grow(&a, 17))
	assert.Equal(t, before, c.Stats())
	assert.True(t, c.Grow(&a, 16))
}

// Free blocks that are hit are not free any more: they do not count as room for the rest.
func TestHitBlocksAreNotRoom(t *testing.T) {
	c := New(3, 4, true)
	var a, b Table
	run(t, c, &a, ids(9, 0))
	c.Free(&a)
	_, ok := c.Admit(&b, ids(16, 0), 16, true)
	assert.False(t, ok, "4 blocks are needed, of which 2 are hits, and only 3 exist")
	hit, ok := c.Admit(&b, ids(16, 0), 4, true)
	assert.True(t, ok)
	assert.Equal(t, 8, hit)
	assert.Len(t, b.Blocks(), 3)
}

func TestReset(t *testing.T) {
	c := New(8, 4, true)
	var a Table
	run(t, c, &a, ids(9, 0))
	var inUse *InUseError
	require.ErrorAs(t, c.Reset(), &inUse)
	assert.Equal(t, "kvcache: 3 of 8 blocks are in use by running sequences", inUse.Error())
	c.Free(&a)
	require.NoError(t, c.Reset())
	assert.Equal(t, Stats{Blocks: 8}, c.Stats())
	assert.Zero(t, run(t, c, &a, ids(9, 0)))
}

// Random lives of sequences: whatever happens, the books balance.
func TestBooksBalance(t *testing.T) {
	type live struct {
		table  Table
		tokens []int32
		done   int // computed
	}
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 5).Draw(t, "block size")
		total := rapid.IntRange(1, 20).Draw(t, "blocks")
		c := New(total, size, rapid.Bool().Draw(t, "prefix"))
		var seqs []*live
		var held []int32
		token := rapid.Int32Range(0, 1) // few ids: prefixes meet often
		pick := func() (*live, int) {
			if len(seqs) == 0 {
				t.Skip("no sequence")
			}
			i := rapid.IntRange(0, len(seqs)-1).Draw(t, "sequence")
			return seqs[i], i
		}
		t.Repeat(map[string]func(*rapid.T){
			"admit": func(t *rapid.T) {
				s := &live{tokens: rapid.SliceOfN(token, 1, 30).Draw(t, "tokens")}
				limit := rapid.IntRange(1, 30).Draw(t, "limit")
				hit, ok := c.Admit(&s.table, s.tokens, limit, rapid.Bool().Draw(t, "read"))
				if !ok {
					return
				}
				if hit >= len(s.tokens) || hit%size != 0 {
					t.Fatalf("a hit of %d tokens of %d, blocks of %d", hit, len(s.tokens), size)
				}
				s.done = min(hit+limit, len(s.tokens))
				c.Commit(&s.table, s.tokens, s.done)
				seqs = append(seqs, s)
			},
			"grow": func(t *rapid.T) {
				s, _ := pick()
				if s.done == len(s.tokens) {
					s.tokens = append(s.tokens, token.Draw(t, "next"))
				}
				if c.Grow(&s.table, s.done+1) {
					s.done++
					c.Commit(&s.table, s.tokens, s.done)
				}
			},
			"free": func(*rapid.T) {
				s, i := pick()
				c.Free(&s.table)
				seqs = append(seqs[:i], seqs[i+1:]...)
			},
			"hold": func(t *rapid.T) {
				s, _ := pick()
				if len(s.table.Blocks()) > 0 {
					b := rapid.SampledFrom(s.table.Blocks()).Draw(t, "block")
					c.Hold(b)
					held = append(held, b)
				}
			},
			"release": func(t *rapid.T) {
				if len(held) > 0 {
					i := rapid.IntRange(0, len(held)-1).Draw(t, "held")
					c.Release(held[i])
					held = append(held[:i], held[i+1:]...)
				}
			},
			"bring from elsewhere": func(t *rapid.T) {
				s := &live{tokens: rapid.SliceOfN(token, 1, 30).Draw(t, "tokens")}
				before := c.Stats()
				keys, cached := c.Keys(&s.table, s.tokens)
				if cached == len(keys) {
					return
				}
				n := rapid.IntRange(cached+1, len(keys)).Draw(t, "blocks")
				if !c.Reserve(&s.table, s.tokens, n) {
					if after := c.Stats(); after != before || len(s.table.Blocks()) > 0 {
						t.Fatalf("a Reserve that failed made %v of %v", after, before)
					}
					return
				}
				if got := len(s.table.Blocks()); got != n || c.Stats().Queries != before.Queries {
					t.Fatalf("%d blocks for %d, %d queries", got, n, c.Stats().Queries-before.Queries)
				}
				came := rapid.IntRange(cached, n).Draw(t, "came")
				c.Commit(&s.table, s.tokens, came*size)
				c.Free(&s.table)
				if _, now := c.Keys(&s.table, s.tokens); now < came {
					t.Fatalf("%d blocks came, %d are cached", came, now)
				}
			},
			"reset": func(t *rapid.T) {
				if err := c.Reset(); (err == nil) != (c.Stats().Used == 0) {
					t.Fatalf("reset with %d blocks in use: %v", c.Stats().Used, err)
				}
			},
			"": func(t *rapid.T) {
				users := map[int32][]*live{}
				for _, s := range seqs {
					if want := (s.done + size - 1) / size; len(s.table.Blocks()) != want {
						t.Fatalf("%d tokens in %d blocks of %d", s.done, len(s.table.Blocks()), size)
					}
					for i, b := range s.table.Blocks() {
						for _, o := range users[b] { // shared only by an equal prefix, in the same place
							if end := (i + 1) * size; o.table.Blocks()[i] != b ||
								string32(o.tokens[:end]) != string32(s.tokens[:end]) {
								t.Fatalf("block %d is in two tables that do not share a prefix", b)
							}
						}
						users[b] = append(users[b], s)
					}
				}
				holds := map[int32]int{}
				for _, b := range held {
					holds[b]++
					if users[b] == nil {
						users[b] = []*live{}
					}
				}
				free := map[int32]bool{}
				for b, last := c.head, none; b != none; last, b = b, c.blocks[b].next {
					if free[b] || c.blocks[b].prev != last || c.blocks[b].refs != 0 {
						t.Fatalf("the free list is broken at block %d", b)
					}
					free[b] = true
				}
				if len(free) != c.free || c.free+len(users) != total || c.Stats().Used != len(users) {
					t.Fatalf("%d blocks: %d free, %d listed as free, %d in use", total, c.free, len(free), len(users))
				}
				cached := 0
				for b := range c.blocks {
					if int(c.blocks[b].refs) != len(users[int32(b)])+holds[int32(b)] {
						t.Fatalf("block %d has %d references, %d users and %d holds", b, c.blocks[b].refs,
							len(users[int32(b)]), holds[int32(b)])
					}
					if c.blocks[b].cached {
						cached++
						at, ok := c.index[c.blocks[b].hash]
						for ok && at != int32(b) && at != none {
							at = c.blocks[at].same
						}
						if at != int32(b) {
							t.Fatalf("block %d is cached but cannot be found", b)
						}
					}
				}
				if cached != c.Stats().Cached || len(c.index) > cached {
					t.Fatalf("%d cached blocks, counted %d, %d hashes", cached, c.Stats().Cached, len(c.index))
				}
			},
		})
		for _, s := range seqs {
			c.Free(&s.table)
		}
		for _, b := range held {
			c.Release(b)
		}
		if c.free != total {
			t.Fatalf("%d of %d blocks are free at the end", c.free, total)
		}
	})
}

func string32(ids []int32) string {
	b := make([]byte, len(ids))
	for i, id := range ids {
		b[i] = byte(id)
	}
	return string(b)
}
