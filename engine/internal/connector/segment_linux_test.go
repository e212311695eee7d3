package connector

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/enginetest/enginetest/engine/internal/offload"
	"github.com/enginetest/enginetest/ledger"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

var _ offload.Connector = (*Segment)(nil)

func TestMain(m *testing.M) {
	if path := os.Getenv(envWriter); path != "" {
		writeHalf(path) // does not return
	}
	goleak.VerifyTestMain(m)
}

const size = 1000 // not a multiple of anything

func key(i int) (k Key) {
	k[0], k[1], k[31] = byte(i), byte(i>>8), 7
	return k
}

// contents is what the block of a key holds.
func contents(i int) []byte { return bytes.Repeat([]byte{byte(i + 1), byte(i >> 7)}, size/2) }

func options(path string, blocks int) Options {
	return Options{Path: path, Bytes: int64(blocks * size), Default: size, BlockBytes: size, Ledger: ledger.New(false)}
}

func open(t *testing.T, path string, blocks int) *Segment {
	t.Helper()
	s, err := Open(t.Context(), options(path, blocks))
	require.NoError(t, err)
	return s
}

func fill(i int) func([]byte) error { return func(b []byte) error { copy(b, contents(i)); return nil } }

func put(t *testing.T, s *Segment, i int) {
	t.Helper()
	require.NoError(t, s.Store(t.Context(), key(i), fill(i)))
}

func get(s *Segment, i int) ([]byte, error) {
	var out []byte
	err := s.Load(context.Background(), key(i), func(b []byte) error { out = bytes.Clone(b); return nil })
	return out, err
}

// has checks which of the first n blocks a segment's user finds, and what is in them.
func has(t *testing.T, s *Segment, n int, want ...int) {
	t.Helper()
	var found []int
	for i := range n {
		b, err := get(s, i)
		if err != nil {
			require.ErrorIs(t, err, ErrGone)
			continue
		}
		require.Equal(t, contents(i), b)
		found = append(found, i)
	}
	assert.Equal(t, want, found)
}

func TestTwoUsers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv")
	a := open(t, path, 4)
	put(t, a, 0)
	b := open(t, path, 4)
	put(t, b, 1)
	put(t, b, 0)
	assert.True(t, a.Has(key(1)))
	assert.False(t, a.Has(key(2)))
	has(t, a, 4, 0, 1)
	has(t, b, 4, 0, 1)
	blocks, room := b.Usage()
	assert.Equal(t, [2]int{2, 4}, [2]int{blocks, room}, "a block is published once")

	held := b.ledger.Holdings()
	require.Len(t, held, 1)
	assert.Equal(t, "kv_connector 12.0 KiB on host (shared)", held[0].String())
	assert.NotZero(t, held[0].Addr)

	require.NoError(t, a.Close())
	assert.Empty(t, a.ledger.Holdings())
	require.FileExists(t, path, "b has it open")
	has(t, b, 4, 0, 1)
	c := open(t, path, 0) // as it is, with the number that a had
	has(t, c, 4, 0, 1)
	require.NoError(t, b.Close())
	require.NoError(t, c.Close())
	require.NoFileExists(t, path)
}

func TestClosed(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "kv"), 4)
	put(t, s, 0)
	require.NoError(t, s.Close())
	assert.False(t, s.Has(key(0)))
	for _, err := range []error{s.Store(t.Context(), key(1), fill(1)), s.Reset(), s.Close()} {
		assert.ErrorIs(t, err, ErrClosed)
	}
	_, err := get(s, 0)
	assert.ErrorIs(t, err, ErrClosed)
}

// The least recently used block makes room, whoever used it.
func TestEviction(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv")
	a, b := open(t, path, 3), open(t, path, 3)
	defer func() { require.NoError(t, errors.Join(a.Close(), b.Close())) }()
	for i := range 3 {
		put(t, a, i)
	}
	assert.True(t, b.Has(key(0)), "a use")
	put(t, a, 3)
	has(t, a, 4, 0, 2, 3)
	blocks, _ := a.Usage()
	assert.Equal(t, 3, blocks)
}

// A block that is being written is neither read nor evicted; when all are, a store is refused.
func TestFull(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "kv"), 2)
	defer func() { require.NoError(t, s.Close()) }()
	require.NoError(t, s.Store(t.Context(), key(0), func(b []byte) error {
		copy(b, contents(0)[:size/2])
		assert.False(t, s.Has(key(0)))
		put(t, s, 1)
		put(t, s, 2)
		has(t, s, 3, 2)
		require.NoError(t, s.Store(t.Context(), key(3), func(b []byte) error {
			assert.ErrorIs(t, s.Store(t.Context(), key(4), fill(4)), ErrFull)
			return fill(3)(b)
		}))
		return fill(0)(b)
	}))
	has(t, s, 5, 0, 3)
}

func TestStoreFails(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "kv"), 1)
	defer func() { require.NoError(t, s.Close()) }()
	boom := errors.New("boom")
	assert.ErrorIs(t, s.Store(t.Context(), key(0), func([]byte) error { return boom }), boom)
	assert.PanicsWithValue(t, boom, func() { _ = s.Store(t.Context(), key(0), func([]byte) error { panic(boom) }) })
	assert.False(t, s.Has(key(0)))
	put(t, s, 1)
	has(t, s, 2, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.ErrorIs(t, s.Store(ctx, key(0), fill(0)), context.Canceled)
	assert.ErrorIs(t, s.Load(ctx, key(1), nil), context.Canceled)
}

// A block whose bytes have changed is an error once, and then it is not found.
func TestDamage(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "kv"), 1)
	defer func() { require.NoError(t, s.Close()) }()
	put(t, s, 0)
	s.place(0)[size-1] ^= 1
	_, err := get(s, 0)
	var damage *DamagedError
	require.ErrorAs(t, err, &damage)
	assert.Regexp(t, `^connector: block 00000000 is damaged: its checksum is [0-9a-f]{8}, want [0-9a-f]{8}$`, err.Error())
	_, err = get(s, 0)
	assert.ErrorIs(t, err, ErrGone)
	blocks, _ := s.Usage()
	assert.Zero(t, blocks)
}

// A reset drops one's own blocks for everyone, and hides the others' from oneself.
func TestReset(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv")
	a, b := open(t, path, 8), open(t, path, 8)
	defer func() { require.NoError(t, errors.Join(a.Close(), b.Close())) }()
	put(t, a, 0)
	put(t, b, 1)
	require.NoError(t, a.Reset())
	has(t, a, 3)
	has(t, b, 3, 1)
	put(t, b, 2)
	put(t, a, 1)
	has(t, a, 3, 1, 2)
	has(t, b, 3, 1, 2)
}

// What is not a segment, or one of another engine, is refused and left as it is.
func TestMismatch(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "kv")
	s := open(t, path, 3)
	put(t, s, 0)
	for _, c := range []struct {
		change func(*Options)
		want   string
	}{
		{func(o *Options) { o.BlockBytes = 500 }, "its blocks have 1000 bytes, and those of this engine 500"},
		{func(o *Options) { o.Model[0] = 0xab }, "its blocks are of another model: 00000000, and not ab000000"},
		{func(o *Options) { o.Bytes = 5000 }, "it has room for 3 blocks, and not for 5"},
	} {
		o := options(path, 0)
		o.Default = 3000
		c.change(&o)
		_, err := Open(t.Context(), o)
		var mismatch *MismatchError
		require.ErrorAs(t, err, &mismatch)
		assert.EqualError(t, err, "connector: "+path+": "+c.want)
	}
	has(t, s, 1, 0)
	require.NoError(t, s.Close())

	for name, content := range map[string]string{"script": "#!/bin/sh\nexit 0\n", "short": "abc"} {
		other := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(other, []byte(content), 0o600))
		_, err := Open(t.Context(), options(other, 3))
		assert.ErrorContains(t, err, `not a KV segment: it begins with "`+content[:3])
		b, err := os.ReadFile(other)
		require.NoError(t, err)
		assert.Equal(t, content, string(b))
	}
	_, err := Open(t.Context(), options(filepath.Join(dir, "none", "kv"), 3))
	assert.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	_, err = Open(t.Context(), options(filepath.Join(dir, "fifo"), 3))
	assert.ErrorContains(t, err, "not a regular file")
	_, err = Open(t.Context(), Options{Path: path, Bytes: 5, BlockBytes: size})
	assert.EqualError(t, err, "connector: 5 bytes hold no KV block, which has 1000")
	assert.NoFileExists(t, path)
}

// An Open that cannot have its memory leaves no file.
func TestOpenFails(t *testing.T) {
	path, boom := filepath.Join(t.TempDir(), "kv"), errors.New("boom")
	o := options(path, 3)
	o.Before = func(owner string, bytes int64) error {
		assert.Equal(t, "kv_connector", owner)
		assert.EqualValues(t, 12<<10, bytes)
		return boom
	}
	_, err := Open(t.Context(), o)
	require.ErrorIs(t, err, boom)
	require.NoFileExists(t, path)
	assert.Empty(t, o.Ledger.Holdings())

	o.Before, o.Bytes = nil, 1<<60
	_, err = Open(t.Context(), o)
	require.Error(t, err, "more than any disk has")
	require.NoFileExists(t, path)
}

// However many open and close a segment at once, all that have it open at a time have the same
// one, and the last one removes it.
func TestOpenAndCloseTogether(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv")
	var users sync.WaitGroup
	for u := range 8 {
		users.Go(func() {
			for i := range 20 {
				s, err := Open(t.Context(), options(path, 3))
				if !assert.NoError(t, err) {
					return
				}
				assert.NoError(t, s.Store(t.Context(), key(u*100+i), fill(u*100+i)))
				assert.True(t, s.file.linked())
				assert.NoError(t, s.Close())
			}
		})
	}
	users.Wait()
	require.NoFileExists(t, path)
}

// Users that write and read over each other see whole blocks or none.
func TestNoTornBlocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv")
	var users sync.WaitGroup
	var loaded [4]int
	var segments []*Segment
	for range loaded {
		segments = append(segments, open(t, path, 32)) // two sets
	}
	for u, s := range segments {
		users.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(u)))
			for range 5000 {
				i := rnd.IntN(200)
				if err := s.Store(t.Context(), key(i), fill(i)); err != nil {
					assert.ErrorIs(t, err, ErrFull)
				}
				i = rnd.IntN(200)
				if b, err := get(s, i); err != nil {
					assert.ErrorIs(t, err, ErrGone)
				} else if assert.Equal(t, contents(i), b) {
					loaded[u]++
				}
			}
		})
	}
	users.Wait()
	blocks, room := segments[0].Usage()
	assert.Equal(t, 32, room)
	assert.Equal(t, 32, blocks)
	for u, s := range segments {
		assert.Positive(t, loaded[u])
		require.NoError(t, s.Close())
	}
	require.NoFileExists(t, path)
}

func TestLayout(t *testing.T) {
	assert.EqualValues(t, 128, rowSize)
	assert.LessOrEqual(t, int(unsafe.Sizeof(header{})), pageSize)
	for _, n := range []int64{1, 3, 16, 17, 31, 100, 5000} {
		g, err := geometryFor(n*size+1, size)
		require.NoError(t, err)
		assert.True(t, g.valid(g.size()))
		assert.False(t, g.valid(g.size()+1))
		assert.LessOrEqual(t, g.slots, n)
		assert.Greater(t, g.slots, n-mostWays)
		for i := range 100 {
			first, ways := g.set(words(key(i)))
			assert.LessOrEqual(t, first+ways, g.slots)
			assert.LessOrEqual(t, ways, int64(mostWays))
		}
	}
	for _, bad := range []geometry{{0, 1}, {1, 0}, {-1, 1}, {1 << 62, 1 << 62}, {64, 51}} {
		assert.False(t, bad.valid(bad.size()))
	}
}
